// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/decoder_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <utility>

namespace capstan::decoder {

DecoderCache::DecoderCache(const TokenModel* owner, const DecoderConfig& config,
                           int64_t batch, int64_t max_length,
                           const at::TensorOptions& options)
    : owner_(owner), batch_(batch), max_length_(max_length) {
  const std::vector<int64_t> shape = {
      batch, max_length, config.num_key_value_heads * config.head_dim};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back({at::empty(shape, options), at::empty(shape, options)});
  }
}

void DecoderCache::KeepRows(const std::vector<int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::kLong);
  if (first_.defined()) first_ = first_.index_select(0, index);
  batch_ = index.numel();
  if (!expected_.empty()) {
    std::vector<int64_t> expected;
    for (const int64_t row : rows) expected.push_back(expected_[row]);
    expected_ = std::move(expected);
  }
  for (kernels::CachedKeyValue& layer : layers_) {
    const at::Tensor here = index.to(layer.k.device());
    layer = {layer.k.index_select(0, here), layer.v.index_select(0, here)};
  }
}

void DecoderCache::ExpectLengths(const std::vector<int64_t>& lengths) {
  TORCH_CHECK(static_cast<int64_t>(lengths.size()) == batch_,
              "a length for each of ", batch_, " rows is expected, not ",
              lengths.size());
  expected_ = lengths;
}

void DecoderCache::NotePadding(const at::Tensor& positions) {
  if (!first_.defined()) first_ = at::zeros({batch_}, at::kLong);
  const int64_t length = positions.size(1);
  const int64_t* position = positions.const_data_ptr<int64_t>();
  int64_t* first = first_.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < batch_; ++row, position += length) {
    // Whether all before is padding.
    bool only_padding = first[row] == length_;
    for (int64_t t = 0; t < length; ++t) {
      TORCH_CHECK(position[t] >= 0 || only_padding, "row ", row,
                  " has padding (position ", position[t], ") at ", length_ + t,
                  ", after its first token");
      only_padding = only_padding && position[t] < 0;
      if (only_padding) ++first[row];
    }
  }
}

kernels::CachedKeyValue DecoderCache::Append(int layer, const at::Tensor& k,
                                             const at::Tensor& v) const {
  const int64_t added = k.size(0) / batch_;
  const auto put = [&](const at::Tensor& cache, const at::Tensor& x) {
    cache.narrow(1, length_, added).copy_(x.view({batch_, added, -1}));
    return cache.narrow(1, 0, length_ + added);
  };
  return {put(layers_[layer].k, k), put(layers_[layer].v, v)};
}

}  // namespace capstan::decoder
