// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CACHE_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/layers/transformer_block.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/sdk/batched_cache.h"
#include "plugins/sdk/kept_context.h"
#include "plugins/sdk/token_model.h"

namespace capstan::decoder {

// Keys and values of each layer, [batch, room, kv_heads * head_dim], whose room
// grows by need, up to max_length. All positions are kept, those beyond a
// layer's window, too.
class DecoderCache final : public KvCache,
                           public BatchedCache,
                           public LengthDependentCache {
 public:
  // `owner`: the only model that may use it.
  DecoderCache(const TokenModel* owner, const DecoderConfig& config,
               int64_t batch, int64_t max_length,
               const at::TensorOptions& options);

  int64_t length() const override { return length_; }
  const TokenModel* owner() const { return owner_; }
  bool Holds(int64_t batch, int64_t more) const {
    return batch == batch_ && length_ + more <= max_length_;
  }

  void Rewind(int64_t length) override { length_ = length; }
  void KeepRows(const std::vector<int64_t>& rows) override;
  void ExpectLengths(const std::vector<int64_t>& lengths) override;
  bool FitsLength(int64_t length) const override;
  // The length expected of a row's text; 0: not known.
  int64_t expected(int64_t row) const {
    return expected_.empty() ? 0 : expected_[row];
  }

  // Takes note of the padding among the next tokens' positions, [batch, T]
  // int64 on the CPU: negative ones, which only come before a row's first
  // token. Throws c10::Error for others.
  void NotePadding(const at::Tensor& positions);
  // [batch] int64 on the CPU: the first filled position of each row that holds
  // a token; undefined: no row has padding.
  const at::Tensor& first() const { return first_; }

  // Appends k and v [batch * T, ..] of a layer; returns all of them.
  kernels::CachedKeyValue Append(int layer, const at::Tensor& k,
                                 const at::Tensor& v);
  // After all layers have appended `positions`.
  void Advance(int64_t positions) { length_ += positions; }

 private:
  // Makes room for `positions` of a layer, which keeps what it has.
  void Grow(int layer, int64_t positions);

  const TokenModel* const owner_;
  const int64_t width_;
  const at::TensorOptions options_;
  int64_t batch_;
  const int64_t max_length_;
  int64_t length_ = 0;
  at::Tensor first_;
  std::vector<int64_t> expected_;        // empty: not known
  std::vector<int64_t> first_expected_;  // at the first position
  const std::vector<Rope> ropes_;
  std::vector<kernels::CachedKeyValue> layers_;
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CACHE_H_
