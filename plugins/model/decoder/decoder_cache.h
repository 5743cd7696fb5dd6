// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CACHE_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention/layer_cache.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/sdk/text_batch.h"
#include "plugins/sdk/token_model.h"

namespace capstan::decoder {

// Keys and values of each layer. All positions are kept, those beyond a layer's
// window, too. On a GPU they have their room from the first token on; but a
// cache of all the model's positions, of which few texts need many, begins with
// some and doubles them.
class DecoderCache final : public KvCache,
                           public BatchedCache,
                           public JoinableCache {
 public:
  BatchedCache* batched() override { return this; }
  // `owner`: the only model that may use it. RESOURCE_EXHAUSTED if a GPU can't
  // hold it, as far as its size is known.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(
      const TokenModel* owner, const DecoderConfig& config, int64_t batch,
      int64_t max_length, const at::TensorOptions& options);
  DecoderCache(const DecoderCache&) = delete;
  DecoderCache& operator=(const DecoderCache&) = delete;

  // The cache that comes with `input`, or null. Throws c10::Error unless it is
  // `owner`'s; it has room, and there are no gradients.
  static DecoderCache* Of(const TokenInput& input, const TokenModel* owner);

  int64_t length() const override { return extent_.length; }

  void Rewind(int64_t length) override { extent_.length = length; }
  void KeepRows(const std::vector<int64_t>& rows) override;
  void ExpectLengths(const std::vector<int64_t>& lengths) override;
  bool FitsLength(int64_t length) const override;
  // Positions before all texts are dropped now and then, from the first Join
  // on. It isn't rewound any more.
  void Join(KvCache& other) override;
  int64_t token_bytes() const override;
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

  // To which a forward appends.
  kernels::LayerCache* layer(int layer) { return &layers_[layer]; }
  // Adapter::known_norms by parameter: weights stay as they are while keys and
  // values of them are kept.
  std::vector<at::Tensor>* adapted_norms() { return &adapted_norms_; }
  // After all layers have appended `positions`.
  void Advance(int64_t positions) { extent_.length += positions; }

 private:
  DecoderCache(const TokenModel* owner, const DecoderConfig& config,
               int64_t batch, int64_t max_length,
               const at::TensorOptions& options);

  // The first position of each row's text, if all had `length` positions.
  at::Tensor FirstAt(int64_t length) const;
  // The positions before all texts.
  int64_t Unused() const;
  void DropUnused();

  const TokenModel* const owner_;
  int64_t max_length_;  // of a text
  bool joined_ = false;
  kernels::CacheExtent extent_;  // its max_length: what there is room for
  at::Tensor first_;
  std::vector<int64_t> expected_;        // empty: not known
  std::vector<int64_t> first_expected_;  // at the first position
  const std::vector<Rope> ropes_;
  std::vector<kernels::LayerCache> layers_;
  std::vector<at::Tensor> adapted_norms_;
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CACHE_H_
