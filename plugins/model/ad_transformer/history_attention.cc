// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/ad_transformer/history_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan {
namespace ad_transformer {

KeysAndValues::KeysAndValues(int64_t rows, const Sizes& sizes,
                             const at::TensorOptions& of)
    : sizes_(sizes), lengths_(rows, 0) {
  for (int64_t i = 0; i < sizes.layers; ++i) {
    // Zeros: what is masked is multiplied by 0, which NaN would outlive.
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
  const at::Tensor y = at::layer_norm(
      x + at::linear(mixed, w[kernels::kOutWeight], w[kernels::kOutBias]), {e},
      w[kernels::kNorm1Weight], w[kernels::kNorm1Bias]);
  const at::Tensor inner =
      at::gelu(at::linear(y, w[kernels::kUpWeight], w[kernels::kUpBias]));
  return at::layer_norm(
      y + at::linear(inner, w[kernels::kDownWeight], w[kernels::kDownBias]),
      {e}, w[kernels::kNorm2Weight], w[kernels::kNorm2Bias]);
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

}  // namespace ad_transformer
}  // namespace capstan
