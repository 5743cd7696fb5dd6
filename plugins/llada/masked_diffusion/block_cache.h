// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_BLOCK_CACHE_H_
#define CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_BLOCK_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "plugins/llada/masked_diffusion/sampler.h"
#include "plugins/sdk/token_model.h"

namespace capstan::masked_diffusion {

// Keeps keys and values of the tokens outside a block from step to step, as
// Config::cache says. The model's cache holds those first, whatever their place
// in the text, since a token that sees all of them sees no order but that of
// their positions; the others follow, and are forgotten before the next step.
class BlockCache {
 public:
  // For texts of `length` tokens. Null if nothing is ever kept: without a
  // cache, or if each step computes all. FieldError if the model has no cache.
  static absl::StatusOr<std::unique_ptr<BlockCache>> Create(
      TokenModel* model, const SamplerOptions& options, int64_t length);

  // The next steps decode [begin, end), the first of them from all tokens.
  void Begin(int64_t begin, int64_t end);
  int64_t begin() const { return begin_; }

  // A step: the block's logits [B, end - begin, V], for tokens [B, length]
  // int64 on the CPU.
  at::Tensor BlockLogits(const at::Tensor& tokens, UnitRunner& runner);

 private:
  BlockCache(TokenModel* model, std::unique_ptr<KvCache> cache,
             const SamplerOptions& options)
      : model_(model),
        cache_(std::move(cache)),
        rows_(cache_->batched()),
        dual_(options.cache == Config::DUAL),
        refresh_(options.cache_refresh.value_or(0)) {}

  TokenModel* const model_;
  const std::unique_ptr<KvCache> cache_;
  BatchedCache* const rows_;  // cache_
  const bool dual_;
  const int64_t refresh_;  // 0: only at a block's beginning
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t step_ = 0;  // of the block
};

}  // namespace capstan::masked_diffusion

#endif  // CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_BLOCK_CACHE_H_
