// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/encoder/encoder_block.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/profile.h"
#include "kernels/fast_path.h"
#include "kernels/keep.h"
#include "kernels/layers/gpu_path.h"
#include "plugins/algorithm_distillation/encoder/encoder_block_pass.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor Space(int64_t floats, const at::Tensor& like) {
  return at::empty({floats}, like.options().requires_grad(false));
}

// A forward that waits for its backward.
struct Call {
  at::Tensor x;
  EncoderBlockWeights weights;
  EncoderBlockOptions options;
  at::Tensor kept;

  EncoderDims dims() const {
    return EncoderDims(options.rows->offsets, x.size(1),
                       weights[kUpWeight].size(0), options.heads,
                       options.last_only, options.dropout.active());
  }
};

EncoderPass PassOf(const Call& call, const EncoderDims& dims) {
  EncoderPass pass(dims, Data(call.kept));
  pass.rows = call.options.rows.get();
  pass.x = ConstData(call.x);
  pass.eps = static_cast<float>(call.options.eps);
  for (int i = 0; i < kEncoderWeights; ++i) {
    pass.weights[i] = ConstData(call.weights[i]);
  }
  if (dims.dropout) {
    const DropoutDraws& draws = call.options.dropout;
    pass.factor = draws.factor();
    pass.threshold = draws.threshold();
    pass.samples = draws.samples.const_data_ptr<int64_t>();
    const auto key = [&](DropoutPlace place, int64_t head) {
      return DropoutKey(draws.seed, call.options.layer, place,
                        static_cast<int>(head));
    };
    for (int64_t h = 0; h < dims.heads; ++h) {
      pass.score_keys.push_back(key(DropoutPlace::kAttention, h));
    }
    pass.output_key = key(DropoutPlace::kOutput, 0);
    pass.inner_key = key(DropoutPlace::kInner, 0);
    pass.fed_key = key(DropoutPlace::kFeedForward, 0);
  }
  return pass;
}

int64_t Workers(const EncoderDims& dims) {
  // Sums are a worker's: else they would depend on how many there are.
  if (at::globalContext().deterministicAlgorithms()) return 1;
  const int64_t groups = static_cast<int64_t>(dims.groups.size()) - 1;
  return std::min<int64_t>(at::get_num_threads(), groups);
}

// body(worker, group) for all groups, distributed over the workers.
template <typename Body>
void ForGroups(const EncoderDims& dims, const Body& body) {
  const int64_t groups = static_cast<int64_t>(dims.groups.size()) - 1;
  const int64_t workers = Workers(dims);
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      for (int64_t g = groups * w / workers; g < groups * (w + 1) / workers;
           ++g) {
        body(w, g);
      }
    }
  });
}

at::Tensor Forward(Call& call) {
  const ProfileScope profile("encoder block");
  const EncoderDims dims = call.dims();
  call.kept = Space(EncoderKept(dims, nullptr).parts.used(), call.x);
  const int64_t space = EncoderForwardSpace(dims, nullptr).parts.used();
  const at::Tensor memory = Space(Workers(dims) * space, call.x);
  at::Tensor out = at::empty({dims.queries, dims.width}, call.kept.options());
  const EncoderPass pass = PassOf(call, dims);
  float* const base = Data(memory);
  float* const to = Data(out);
  ForGroups(dims, [&](int64_t worker, int64_t group) {
    ForwardGroup(pass, group, EncoderForwardSpace(dims, base + worker * space),
                 to);
  });
  return out;
}

variable_list Backward(Call& call, const at::Tensor& d_out) {
  const ProfileScope profile("encoder block");
  const EncoderDims dims = call.dims();
  const int64_t workers = Workers(dims);
  const int64_t space = EncoderBackwardSpace(dims, nullptr).parts.used();
  const at::Tensor memory = Space(workers * space, call.x);
  const EncoderPass pass = PassOf(call, dims);
  const at::Tensor dx = at::empty(call.x.sizes(), memory.options());
  // Each worker sums on its own; the sums are added in order.
  std::vector<std::vector<at::Tensor>> sums(workers);
  std::vector<EncoderGradients> to(workers);
  for (int64_t w = 0; w < workers; ++w) {
    for (int i = 0; i < kEncoderWeights; ++i) {
      sums[w].push_back(at::zeros_like(call.weights[i], memory.options()));
      to[w][i] = Data(sums[w][i]);
    }
  }
  float* const base = Data(memory);
  ForGroups(dims, [&](int64_t worker, int64_t group) {
    BackwardGroup(pass, group, ConstData(d_out),
                  EncoderBackwardSpace(dims, base + worker * space), Data(dx),
                  to[worker]);
  });
  variable_list gradients = {dx};
  for (int i = 0; i < kEncoderWeights; ++i) {
    for (int64_t w = 1; w < workers; ++w) sums[0][i].add_(sums[w][i]);
    gradients.push_back(std::move(sums[0][i]));
  }
  return gradients;
}

// Rows per chunk of a forward that keeps nothing.
constexpr int64_t kPassingRows = 8192;

at::Tensor ForwardWithoutGradients(const Call& whole) {
  const EncoderRows& rows = *whole.options.rows;
  if (rows.rows() <= kPassingRows) {
    Call call = whole;
    return Forward(call);
  }
  const bool last_only = whole.options.last_only;
  at::Tensor out =
      at::empty({last_only ? rows.batch() : rows.rows(), whole.x.size(1)},
                whole.x.options().requires_grad(false));
  for (int64_t begin = 0, end = 0; begin < rows.batch(); begin = end) {
    auto part = c10::make_intrusive<EncoderRows>();
    const int64_t row = rows.offsets[begin];
    part->offsets.push_back(0);
    do {
      part->offsets.push_back(rows.offsets[++end] - row);
    } while (end < rows.batch() && rows.offsets[end + 1] - row <= kPassingRows);
    Call call = whole;
    call.x = whole.x.narrow(0, row, part->rows());
    call.options.rows = part;
    if (whole.options.dropout.active()) {
      call.options.dropout.samples =
          whole.options.dropout.samples.narrow(0, begin, end - begin);
    }
    out.narrow(0, last_only ? begin : row,
               last_only ? end - begin : part->rows())
        .copy_(Forward(call));
  }
  return out;
}

class EncoderBlockFunction
    : public torch::autograd::Function<EncoderBlockFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            at::TensorList weights,
                            const EncoderBlockOptions& options) {
    Call call = {x, {}, options, {}};
    std::copy(weights.begin(), weights.end(), call.weights.begin());
    return Forward(Keep(ctx, std::move(call)));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = KeptOf<Call>(ctx);
    TORCH_CHECK(call.kept.defined(),
                "a fused encoder block's backward can run only once");
    variable_list gradients = Backward(call, grads[0].contiguous());
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!ctx->needs_input_grad(i)) gradients[i].reset();
    }
    gradients.emplace_back();  // options
    call.kept.reset();
    call.x.reset();
    call.weights = {};
    return gradients;
  }
};

// The plain block.

// [B * T, heads * head_dim] as [B, heads, T, head_dim].
at::Tensor Heads(const at::Tensor& x, int64_t batch, int64_t heads) {
  return x.reshape({batch, x.size(0) / batch, heads, x.size(1) / heads})
      .transpose(1, 2);
}

// The attention's output, [queries, E]. x_query: the rows used as queries.
at::Tensor Attention(const at::Tensor& x, const at::Tensor& x_query,
                     const EncoderBlockWeights& w,
                     const EncoderBlockOptions& options) {
  const int64_t width = x.size(1), batch = options.rows->batch();
  const int64_t length = x.size(0) / batch;
  const auto project = [&](const at::Tensor& from, int part) {
    return Heads(at::linear(from, w[kInWeight].narrow(0, part * width, width),
                            w[kInBias].narrow(0, part * width, width)),
                 batch, options.heads);
  };
  at::Tensor q, k, v;
  if (OnGpuPath(x) && x_query.is_same(x)) {
    // One product, and one gradient of the weights, which are one below the
    // other.
    const std::vector<at::Tensor> parts =
        at::linear(x, w[kInWeight], w[kInBias]).split(width, 1);
    q = Heads(parts[0], batch, options.heads);
    k = Heads(parts[1], batch, options.heads);
    v = Heads(parts[2], batch, options.heads);
  } else {
    q = project(x_query, 0);
    k = project(x, 1);
    v = project(x, 2);
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)).mul(scale);
  const at::Tensor places = at::arange(length, options.rows->last.options());
  const at::Tensor seen_by =
      options.last_only
          ? options.rows->last.remainder(length).view({batch, 1, 1, 1})
          : places.view({1, 1, length, 1});
  const at::Tensor weights =
      scores
          .masked_fill(places.gt(seen_by),
                       -std::numeric_limits<double>::infinity())
          .softmax(-1);
  const at::Tensor mixed = at::matmul(
      DropScores(weights, options.dropout, options.layer, options.max_length),
      v);
  return mixed.transpose(1, 2).reshape({x_query.size(0), width});
}

// Plans.

bool HasFusedWidths(int64_t width, int64_t feed_forward) {
  return width % 16 == 0 && feed_forward % 16 == 0;
}

OperatorMemory PlanFusedBlock(const EncoderBlockShape& s) {
  std::vector<int64_t> offsets;
  for (int64_t b = 0; b <= s.batch; ++b) offsets.push_back(b * s.length);
  const EncoderDims d(offsets, s.width, s.feed_forward, s.heads, s.last_only,
                      s.dropout);
  const int64_t workers = Workers(d);
  OperatorMemory memory;
  memory.kept = EncoderKept(d, nullptr).parts.used() * kFloatBytes;
  memory.forward =
      EncoderForwardSpace(d, nullptr).parts.used() * kFloatBytes * workers;
  // Each worker has its own sums of the weights' gradients.
  memory.backward =
      EncoderBackwardSpace(d, nullptr).parts.used() * kFloatBytes * workers +
      s.Bytes(workers - 1, s.weights());
  return memory;
}

// PlainEncoderBlock.
OperatorMemory PlanPlainBlock(const EncoderBlockShape& s) {
  const int64_t queries = s.queries(), e = s.width, f = s.feed_forward;
  // A head's scores: for each query as many as there are tokens.
  const int64_t scores = s.Bytes(queries * s.heads, s.length);
  const int64_t dropped = s.dropout ? 1 : 0;
  OperatorMemory memory;
  memory.kept = s.Bytes(s.rows(), 2 * e) +
                s.Bytes(queries, (5 + 2 * dropped) * e + (2 + dropped) * f) +
                (1 + 2 * dropped) * scores;
  memory.forward = 3 * scores;
  memory.backward = std::max(3 * scores, s.Bytes(queries, 2 * f));
  return memory;
}

// Bytes in PlainEncoderBlock on a GPU.
struct GpuBlockBytes {
  explicit GpuBlockBytes(const EncoderBlockShape& s)
      : x(s.Bytes(s.rows(), s.width)),
        y(s.Bytes(s.queries(), s.width)),
        inner(s.Bytes(s.queries(), s.feed_forward)),
        scores(s.Bytes(s.queries() * s.heads, s.length)),
        statistics(2 * s.queries() * kFloatBytes),
        rows_of_q(s.last_only ? y : 0),
        q_by_head(s.last_only ? 0 : y),
        dropped(s.dropout ? 1 : 0),
        padded(dropped * 2 * scores / s.heads) {}

  const int64_t x, y;  // of all rows; of queries
  const int64_t inner;
  const int64_t scores;
  const int64_t statistics;  // of a norm
  const int64_t rows_of_q;   // taken from x
  // Copied by matmul, which wants a head's numbers side by side, as it copies k
  // and v. A single row's are.
  const int64_t q_by_head;
  // How many tensors dropout makes of one. It keeps none: backward draws again.
  const int64_t dropped;
  const int64_t padded;  // scores of one head, before and after dropout
};

// What each operator returns, and what is freed behind it.
MemoryLedger GpuBlockForward(const GpuBlockBytes& b) {
  MemoryLedger ledger;
  ledger.Take(b.rows_of_q + b.y + 2 * b.x);  // q, k and v
  ledger.Take(b.q_by_head + b.x);
  ledger.Take(b.scores);      // scaled
  ledger.Pass(2 * b.scores);  // masked; probabilities
  ledger.Take(b.scores);
  ledger.Pass(b.dropped * b.scores + b.padded);
  ledger.Take(b.dropped * b.scores);
  ledger.Take(b.x);                // v by head
  ledger.Pass(b.y + b.q_by_head);  // mixed by head, and by row
  ledger.Take(b.y);
  ledger.Free(b.scores + b.q_by_head + 2 * b.x);
  ledger.Take(b.y);  // attended, until the end
  ledger.Pass((1 + b.dropped) * b.y);
  ledger.Take(2 * b.y + b.statistics);  // the first norm's input and output
  ledger.Take(2 * b.inner);
  ledger.Take(b.y);                     // fed, until the end
  ledger.Take(2 * b.y + b.statistics);  // the second norm's
  ledger.Pass(b.dropped * b.y);
  ledger.Free(2 * b.y);
  return ledger;
}

// From what forward keeps, with the output's gradient in the output's place.
MemoryLedger GpuBlockBackward(const GpuBlockBytes& b, bool last_only,
                              int64_t kept) {
  MemoryLedger ledger(kept);
  ledger.Take(b.y);  // through the second norm
  ledger.Free(2 * b.y + b.statistics);
  ledger.Take(b.dropped * b.y + b.inner);  // the feed-forward's layers
  ledger.Free(b.dropped * b.y + b.inner);
  ledger.Pass(b.dropped * b.inner);
  ledger.Take(b.inner);
  ledger.Free(2 * b.inner);
  ledger.Take(b.y);
  ledger.Free(b.inner + 2 * b.y);
  ledger.Take(b.y);  // the first norm
  ledger.Free(2 * b.y + b.statistics);
  ledger.Pass((1 + b.dropped) * b.y);  // to what is mixed, of which y is left
  ledger.Pass(b.y);                    // by head
  ledger.Take(b.scores + b.x);         // to probabilities, and to v
  ledger.Free(b.x + b.y + b.dropped * b.scores);
  ledger.Pass(b.dropped * b.scores + b.padded);
  ledger.Pass(b.scores);
  ledger.Free(b.scores);
  ledger.Pass(b.scores);
  ledger.Take(b.y + b.x);  // to q and k
  ledger.Free(b.y + b.x + b.scores);
  ledger.Pass(last_only ? b.x : b.y + 2 * b.x);  // to x; of all three at once
  return ledger;
}

OperatorMemory PlanGpuBlock(const EncoderBlockShape& s) {
  const GpuBlockBytes bytes(s);
  const MemoryLedger forward = GpuBlockForward(bytes);
  const int64_t kept = forward.live();
  const MemoryLedger backward = GpuBlockBackward(bytes, s.last_only, kept);
  // One gradient of a matrix at a time, which goes into its bucket.
  const int64_t gradient =
      s.Bytes(s.width, std::max(3 * s.width, s.feed_forward));
  return {kept, forward.peak() - kept, backward.peak() - kept + gradient};
}

}  // namespace

at::Tensor PlainEncoderBlock(const at::Tensor& x, const EncoderBlockWeights& w,
                             const EncoderBlockOptions& options) {
  const EncoderRows& rows = *options.rows;
  for (int64_t b = 0; b < rows.batch(); ++b) {
    TORCH_CHECK(rows.length(b) == rows.length(0),
                "a plain encoder block wants sequences alike in length");
  }
  const at::Tensor x_query =
      options.last_only ? x.index_select(0, rows.last) : x;
  return PlainEncoderRest(x_query, Attention(x, x_query, w, options), w,
                          options);
}

at::Tensor PlainEncoderRest(const at::Tensor& x, const at::Tensor& mixed,
                            const EncoderBlockWeights& w,
                            const EncoderBlockOptions& options) {
  const auto drop = [&](const at::Tensor& t, DropoutPlace place) {
    return DropRows(t, options.dropout, options.layer, place);
  };
  const at::Tensor attended = at::linear(mixed, w[kOutWeight], w[kOutBias]);
  const at::Tensor y =
      at::layer_norm(x + drop(attended, DropoutPlace::kOutput), {x.size(1)},
                     w[kNorm1Weight], w[kNorm1Bias], options.eps);
  const at::Tensor inner = drop(
      at::gelu(at::linear(y, w[kUpWeight], w[kUpBias])), DropoutPlace::kInner);
  const at::Tensor fed = at::linear(inner, w[kDownWeight], w[kDownBias]);
  return at::layer_norm(y + drop(fed, DropoutPlace::kFeedForward), {x.size(1)},
                        w[kNorm2Weight], w[kNorm2Bias], options.eps);
}

bool EncoderBlockShape::fused() const {
  return !gpu && dtype == c10::ScalarType::Float &&
         HasFusedWidths(width, feed_forward);
}

OperatorMemory PlanEncoderBlock(const EncoderBlockShape& s) {
  if (s.gpu) return PlanGpuBlock(s);
  OperatorMemory memory = s.fused() ? PlanFusedBlock(s) : PlanPlainBlock(s);
  const int64_t output = s.Bytes(s.queries(), s.width);
  memory.kept += output;
  // The gradients of weights and of x, and the output's, made contiguous.
  memory.backward +=
      output + s.Bytes(s.rows(), s.width) + s.Bytes(1, s.weights());
  return memory;
}

bool CanFuseEncoderBlock(const at::Tensor& like, int64_t width,
                         int64_t feed_forward) {
  return FastPath(like) && HasFusedWidths(width, feed_forward);
}

at::Tensor FusedEncoderBlock(const at::Tensor& x,
                             const EncoderBlockWeights& weights,
                             const EncoderBlockOptions& options) {
  TORCH_CHECK(x.size(0) == options.rows->rows(), "x has ", x.size(0),
              " rows, the sequences ", options.rows->rows());
  if (!at::GradMode::is_enabled()) {
    return ForwardWithoutGradients({x.contiguous(), weights, options, {}});
  }
  return EncoderBlockFunction::apply(x.contiguous(), at::TensorList(weights),
                                     options);
}

}  // namespace capstan::kernels
