// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/decoder_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace capstan::decoder {
namespace {

// Room that a cache begins with.
constexpr int64_t kFirstPositions = 64;

}  // namespace

DecoderCache::DecoderCache(const TokenModel* owner, const DecoderConfig& config,
                           int64_t batch, int64_t max_length,
                           const at::TensorOptions& options)
    : owner_(owner),
      width_(config.num_key_value_heads * config.head_dim),
      options_(options),
      batch_(batch),
      max_length_(max_length),
      ropes_(config.ropes),
      layers_(config.num_hidden_layers) {}

void DecoderCache::Grow(int layer, int64_t positions) {
  kernels::CachedKeyValue& of = layers_[layer];
  const int64_t room = of.k.defined() ? of.k.size(1) : 0;
  if (positions <= room) return;
  const int64_t more = std::min(
      max_length_, std::max(positions, std::max(2 * room, kFirstPositions)));
  for (at::Tensor* const x : {&of.k, &of.v}) {
    const at::Tensor grown = at::empty({batch_, more, width_}, options_);
    if (length_ > 0) {
      grown.narrow(1, 0, length_).copy_(x->narrow(1, 0, length_));
    }
    *x = grown;
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
    for (at::Tensor* const x : {&layer.k, &layer.v}) {
      if (!x->defined()) continue;
      // In place: rows move to the front, in ascending order.
      for (int64_t to = 0; to < batch_; ++to) {
        if (rows[to] == to) continue;
        x->select(0, to)
            .narrow(0, 0, length_)
            .copy_(x->select(0, rows[to]).narrow(0, 0, length_));
      }
      *x = x->narrow(0, 0, batch_);
    }
  }
}

void DecoderCache::ExpectLengths(const std::vector<int64_t>& lengths) {
  TORCH_CHECK(static_cast<int64_t>(lengths.size()) == batch_,
              "a length for each of ", batch_, " rows is expected, not ",
              lengths.size());
  expected_ = lengths;
  if (length_ == 0) first_expected_ = lengths;
}

bool DecoderCache::FitsLength(int64_t length) const {
  if (length_ == 0) return true;
  return std::all_of(ropes_.begin(), ropes_.end(), [&](const Rope& rope) {
    const int64_t decisive = DecisiveLength(rope, length);
    // A text only grows, and so does what is decisive.
    const auto fits = [&](int64_t expected) {
      return DecisiveLength(rope, expected) == decisive;
    };
    return decisive == 0 ||
           (!expected_.empty() &&
            std::all_of(first_expected_.begin(), first_expected_.end(), fits) &&
            std::all_of(expected_.begin(), expected_.end(), fits));
  });
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
                                             const at::Tensor& v) {
  const int64_t added = k.size(0) / batch_;
  Grow(layer, length_ + added);
  const auto put = [&](const at::Tensor& cache, const at::Tensor& x) {
    if (cache.is_cpu() && x.is_contiguous() &&
        x.scalar_type() == cache.scalar_type()) {
      // As copy_, which takes longer than a row's memory does.
      const int64_t bytes = x.element_size() * width_;
      auto* to = static_cast<char*>(cache.mutable_data_ptr()) + length_ * bytes;
      const auto* from = static_cast<const char*>(x.const_data_ptr());
      for (int64_t row = 0; row < batch_; ++row) {
        std::memcpy(to, from, added * bytes);
        to += cache.stride(0) * x.element_size();
        from += added * bytes;
      }
    } else {
      cache.narrow(1, length_, added).copy_(x.view({batch_, added, -1}));
    }
    return cache.narrow(1, 0, length_ + added);
  };
  return {put(layers_[layer].k, k), put(layers_[layer].v, v)};
}

}  // namespace capstan::decoder
