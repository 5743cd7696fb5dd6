// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_LIB_PROMPT_BATCH_H_
#define CAPSTAN_PLUGINS_SDK_LIB_PROMPT_BATCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// Texts of different lengths in one cache of a causal model, padded on the
// left. Without gradients; one thread at a time.
class PromptBatch {
 public:
  // Runs the prompts, which may be empty, and makes room for `more` positions
  // after the longest, all of which the model must have; a token at least
  // follows. UNIMPLEMENTED if the model's cache is no BatchedCache.
  static absl::StatusOr<std::unique_ptr<PromptBatch>> Create(
      TokenModel* model, absl::Span<const absl::Span<const int64_t>> prompts,
      int64_t more, UnitRunner& runner);

  // Appends `tokens` [rows, T] int64 and returns what follows each of them: [
  // rows, T, V] float32 on the CPU.
  at::Tensor Append(const at::Tensor& tokens, UnitRunner& runner);

  // Back to the prompts alone.
  void Rewind();
  // See BatchedCache::KeepRows.
  void KeepRows(const std::vector<int64_t>& rows);

  int64_t rows() const { return static_cast<int64_t>(lengths_.size()); }

 private:
  PromptBatch(TokenModel* model, std::unique_ptr<KvCache> cache,
              BatchedCache* batched)
      : model_(model), cache_(std::move(cache)), batched_(batched) {}

  void Prefill(absl::Span<const absl::Span<const int64_t>> prompts,
               UnitRunner& runner);

  TokenModel* const model_;
  const std::unique_ptr<KvCache> cache_;
  BatchedCache* const batched_;   // *cache_
  std::vector<int64_t> lengths_;  // of the prompts
  int64_t appended_ = 0;
  int64_t prefilled_ = 0;  // positions, padding included
};

// The most positions of `rows` rows whose logits may exist at once.
int64_t LogitsChunk(const TokenModel& model, int64_t rows);

// The most positions of `rows` prompts that Create computes at once: of what
// the model makes on the way or, if it can't leave them out, of their logits.
int64_t PromptChunk(const TokenModel& model, int64_t rows);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_PROMPT_BATCH_H_
