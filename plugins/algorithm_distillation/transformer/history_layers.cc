// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/transformer/history_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/profile.h"
#include "kernels/gemm/gemm.h"
#include "kernels/keep.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::ad_transformer {
namespace {

using kernels::EncoderRows;
using kernels::Gemm;
using kernels::Transpose;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor Is(const at::Tensor& kinds, HistoryToken kind) {
  return kinds.eq(static_cast<int64_t>(kind)).unsqueeze(-1);
}

// What a fused embedding's forward leaves for backward.
struct Call {
  Sizes sizes;
  c10::intrusive_ptr<const EncoderRows> rows;
  std::vector<at::Tensor> parameters;
  at::Tensor transitions, kinds;  // on the CPU, contiguous
  at::Tensor features;            // [rows, features], 0 but for transitions
};

// Calls body(row, position, kind, transition) for each token.
template <typename Body>
void ForTokens(const Call& call, const Body& body) {
  const uint8_t* const transitions = call.transitions.const_data_ptr<uint8_t>();
  const uint8_t* const kinds = call.kinds.const_data_ptr<uint8_t>();
  const int64_t length = call.kinds.size(1);
  for (int64_t b = 0; b < call.rows->batch(); ++b) {
    const int64_t begin = call.rows->offsets[b];
    for (int64_t t = 0; t < call.rows->length(b); ++t) {
      const int64_t token = b * length + t;
      body(begin + t, t, static_cast<HistoryToken>(kinds[token]),
           transitions + token * call.sizes.columns().count());
    }
  }
}

int64_t QueryState(const Sizes& sizes, const uint8_t* transition) {
  int64_t state = 0;
  for (const int64_t bound : sizes.observation) {
    state = state * bound + std::min<int64_t>(*transition++, bound - 1);
  }
  return state;
}

int64_t TypeOf(HistoryToken kind) {
  return kind == HistoryToken::kStart ? 1 : kind == HistoryToken::kEnd ? 2 : 0;
}

void Describe(const Sizes& sizes, const uint8_t* transition, float* features) {
  const HistoryColumns columns = sizes.columns();
  std::copy_n(transition, columns.numbers, features);
  features += columns.numbers;
  const int64_t action =
      std::min<int64_t>(transition[columns.action()], sizes.actions - 1);
  features[action] = 1.0f;
  // The reward, and what the action led to.
  std::copy_n(transition + columns.reward(), 1 + columns.numbers,
              features + sizes.actions);
}

void Add(const float* x, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

// The learned vector of a token that isn't a transition: index of its
// parameter, and its row. -1: padding.
std::pair<int, int64_t> VectorOf(const Call& call, HistoryToken kind,
                                 const uint8_t* transition) {
  switch (kind) {
    case HistoryToken::kQuery:
      return {kQueryStates, QueryState(call.sizes, transition)};
    case HistoryToken::kStart:
      return {call.sizes.compressed ? kStartToken : -1, 0};
    case HistoryToken::kEnd:
      return {call.sizes.compressed ? kEndToken : -1, 0};
    default:
      return {-1, 0};
  }
}

at::Tensor Forward(Call& call) {
  const ProfileScope profile("history embedding");
  const Sizes& s = call.sizes;
  const int64_t e = s.embedding, n = s.features(), rows = call.rows->rows();
  std::vector<const float*> p;
  for (const at::Tensor& t : call.parameters) {
    p.push_back(t.const_data_ptr<float>());
  }
  call.features = at::zeros({rows, n}, at::kFloat);
  float* const features = call.features.mutable_data_ptr<float>();
  at::Tensor out = at::empty({rows, e}, call.features.options());
  float* const to = out.mutable_data_ptr<float>();
  // Position and type, and the linear layer's bias or another token's vector.
  ForTokens(call, [&](int64_t row, int64_t t, HistoryToken kind,
                      const uint8_t* transition) {
    float* const x = to + row * e;
    std::memcpy(x, p[kPositions] + t * e, e * sizeof(float));
    if (s.compressed) Add(p[kTokenTypeRows] + TypeOf(kind) * e, e, x);
    if (kind == HistoryToken::kTransition) {
      Describe(s, transition, features + row * n);
      return Add(p[kContextBias], e, x);
    }
    const auto [index, at] = VectorOf(call, kind, transition);
    if (index >= 0) Add(p[index] + at * e, e, x);
  });
  Gemm(Transpose::kRight, rows, e, n, 1.0f, {features, n},
       {p[kContextWeight], n}, 1.0f, {to, e});
  return out;
}

variable_list Backward(const Call& call, const at::Tensor& d_out) {
  const ProfileScope profile("history embedding");
  const Sizes& s = call.sizes;
  const int64_t e = s.embedding, n = s.features(), rows = call.rows->rows();
  variable_list gradients;
  std::vector<float*> p;
  for (const at::Tensor& t : call.parameters) {
    gradients.push_back(at::zeros_like(t));
    p.push_back(gradients.back().mutable_data_ptr<float>());
  }
  const float* const from = d_out.const_data_ptr<float>();
  ForTokens(call, [&](int64_t row, int64_t t, HistoryToken kind,
                      const uint8_t* transition) {
    const float* const d = from + row * e;
    Add(d, e, p[kPositions] + t * e);
    if (s.compressed) Add(d, e, p[kTokenTypeRows] + TypeOf(kind) * e);
    if (kind == HistoryToken::kTransition) return Add(d, e, p[kContextBias]);
    const auto [index, at] = VectorOf(call, kind, transition);
    if (index >= 0) Add(d, e, p[index] + at * e);
  });
  Gemm(Transpose::kLeft, e, n, rows, 1.0f, {from, e},
       {call.features.const_data_ptr<float>(), n}, 0.0f,
       {p[kContextWeight], n});
  return gradients;
}

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList parameters,
                            Call call) {
    call.parameters = parameters.vec();
    return Forward(kernels::Keep(ctx, std::move(call)));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list gradients =
        Backward(kernels::KeptOf<Call>(ctx), grads[0].contiguous());
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!ctx->needs_input_grad(i)) gradients[i].reset();
    }
    gradients.emplace_back();  // call
    return gradients;
  }
};

}  // namespace

at::Tensor PlainEmbedding(const Sizes& sizes, const at::Tensor& transitions,
                          const at::Tensor& kinds, const at::Tensor& first,
                          const std::vector<at::Tensor>& parameters) {
  const auto p = [&](EmbeddingParameter i) { return parameters[i]; };
  const int64_t batch = kinds.size(0), length = kinds.size(1);
  const HistoryColumns columns = sizes.columns();
  const at::Tensor numbers = transitions.to(at::kLong);
  const at::Tensor action =
      numbers.select(2, columns.action()).clamp(0, sizes.actions - 1);
  const at::Tensor features =
      at::cat({numbers.narrow(2, 0, columns.numbers),
               at::one_hot(action, sizes.actions),
               numbers.narrow(2, columns.reward(), 1 + columns.numbers)},
              2);
  at::Tensor x = at::linear(features.to(p(kContextWeight).scalar_type()),
                            p(kContextWeight), p(kContextBias));
  at::Tensor state;
  for (int64_t i = 0; i < columns.numbers; ++i) {
    const int64_t bound = sizes.observation[i];
    const at::Tensor number = numbers.select(2, i).clamp(0, bound - 1);
    state = i == 0 ? number : state * bound + number;
  }
  const at::Tensor query =
      p(kQueryStates).index_select(0, state.reshape({-1})).view_as(x);
  x = at::where(Is(kinds, HistoryToken::kQuery), query, x);
  at::Tensor places = at::arange(length, numbers.options()).unsqueeze(0);
  if (first.defined()) places = places + first.unsqueeze(1);
  const at::Tensor positions =
      p(kPositions)[0]
          .index_select(0, places.expand({batch, length})
                               .clamp(0, sizes.n_transit - 1)
                               .reshape({-1}))
          .view_as(x);
  x = x + positions;
  if (sizes.compressed) {
    const at::Tensor start = Is(kinds, HistoryToken::kStart);
    const at::Tensor end = Is(kinds, HistoryToken::kEnd);
    const at::Tensor type = (start.to(at::kLong) + 2 * end.to(at::kLong));
    x = at::where(start, p(kStartToken) + positions, x);
    x = at::where(end, p(kEndToken) + positions, x);
    x = x + p(kTokenTypeRows).index_select(0, type.reshape({-1})).view_as(x);
  }
  x = x.masked_fill(Is(kinds, HistoryToken::kPadding), 0.0);
  return x.view({batch * length, sizes.embedding});
}

at::Tensor FusedEmbedding(const Sizes& sizes, const at::Tensor& transitions,
                          const at::Tensor& kinds,
                          const c10::intrusive_ptr<const EncoderRows>& rows,
                          const std::vector<at::Tensor>& parameters) {
  return EmbeddingFunction::apply(at::TensorList(parameters),
                                  Call{sizes,
                                       rows,
                                       {},
                                       transitions.contiguous(),
                                       kinds.contiguous(),
                                       at::Tensor()});
}

kernels::OperatorMemory PlanEmbedding(const Sizes& sizes, int64_t rows,
                                      c10::ScalarType dtype, bool fused,
                                      int64_t gradients) {
  const int64_t element = kernels::ElementBytes(dtype);
  const int64_t output = rows * sizes.embedding * element;
  kernels::OperatorMemory memory;
  memory.kept = output + rows * sizes.features() * element;
  memory.backward = output + gradients;
  if (fused) return memory;
  // The transitions' numbers as int64, and a few sums of vectors.
  memory.forward = rows * sizes.features() * 8 + 3 * output;
  memory.backward += 3 * output;
  return memory;
}

KeysAndValues::KeysAndValues(int64_t rows, const Sizes& sizes,
                             const at::TensorOptions& of)
    : sizes_(sizes), lengths_(rows, 0) {
  for (int64_t i = 0; i < sizes.layers; ++i) {
    // Zeroed: masked values are multiplied by 0, but NaN would remain.
    for (auto* of_layers : {&keys_, &values_}) {
      of_layers->push_back(
          at::zeros({rows, sizes.n_transit + 1, sizes.embedding}, of));
    }
  }
}

KeysAndValues::Step KeysAndValues::Begin(const at::Tensor& lengths,
                                         int64_t n) const {
  const at::Tensor counts = lengths.contiguous();
  const int64_t* const count = counts.const_data_ptr<int64_t>();
  CHECK_EQ(counts.numel(), rows()) << "a history for each row of the cache";
  const at::Tensor slots = at::empty({rows(), n}, at::kLong);
  const at::Tensor first = at::empty({rows()}, at::kLong);
  const at::Tensor last = at::empty({rows()}, at::kLong);
  int64_t* const slot = slots.mutable_data_ptr<int64_t>();
  Step step;
  step.tokens = n;
  step.keys = 1;
  for (int64_t b = 0; b < rows(); ++b) {
    const int64_t end = lengths_[b] + count[b];
    CHECK(count[b] >= 0 && count[b] <= n && end <= sizes_.n_transit)
        << "row " << b << " of the cache has " << lengths_[b] << " tokens, "
        << count[b] << " more come, n_transit is " << sizes_.n_transit;
    for (int64_t i = 0; i < n; ++i) {
      slot[b * n + i] = i < count[b] ? lengths_[b] + i : sizes_.n_transit;
    }
    first.mutable_data_ptr<int64_t>()[b] = lengths_[b];
    last.mutable_data_ptr<int64_t>()[b] =
        b * n + std::max<int64_t>(count[b] - 1, 0);
    step.keys = std::max(step.keys, end);
  }
  const at::Device device = keys_[0].device();
  step.slots = slots.to(device);
  step.first = first.to(device);
  step.last = last.to(device);
  step.unseen = at::arange(step.keys, step.slots.options())
                    .view({1, 1, 1, step.keys})
                    .gt(step.slots.view({rows(), 1, n, 1}));
  return step;
}

at::Tensor KeysAndValues::Layer(const Step& step, int layer,
                                const kernels::EncoderBlockWeights& w,
                                const at::Tensor& x) {
  const int64_t e = sizes_.embedding, head_dim = e / sizes_.heads;
  const at::Tensor qkv =
      at::linear(x, w[kernels::kInWeight], w[kernels::kInBias])
          .view({rows(), step.tokens, 3 * e});
  const at::Tensor places =
      step.slots.unsqueeze(2).expand({rows(), step.tokens, e});
  keys_[layer].scatter_(1, places, qkv.narrow(2, e, e));
  values_[layer].scatter_(1, places, qkv.narrow(2, 2 * e, e));
  const auto heads = [&](const at::Tensor& t) {
    return t.unflatten(2, {sizes_.heads, head_dim}).transpose(1, 2);
  };
  const at::Tensor k = heads(keys_[layer].narrow(1, 0, step.keys));
  const at::Tensor v = heads(values_[layer].narrow(1, 0, step.keys));
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const at::Tensor weights =
      at::matmul(heads(qkv.narrow(2, 0, e)), k.transpose(2, 3))
          .mul_(scale)
          .masked_fill_(step.unseen, -std::numeric_limits<double>::infinity())
          .softmax(-1);
  const at::Tensor mixed =
      at::matmul(weights, v).transpose(1, 2).reshape({rows() * step.tokens, e});
  return kernels::PlainEncoderRest(x, mixed, w, {});
}

void KeysAndValues::End(const at::Tensor& kinds, const at::Tensor& lengths) {
  const at::Tensor kind = kinds.contiguous(), counts = lengths.contiguous();
  const int64_t n = kind.size(1);
  for (int64_t b = 0; b < rows(); ++b) {
    const int64_t count = counts.const_data_ptr<int64_t>()[b];
    if (count == 0) continue;
    const auto last = static_cast<HistoryToken>(
        kind.const_data_ptr<uint8_t>()[b * n + count - 1]);
    lengths_[b] += count - (last == HistoryToken::kQuery ? 1 : 0);
  }
}

}  // namespace capstan::ad_transformer
