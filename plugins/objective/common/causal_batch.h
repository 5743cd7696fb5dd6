// SPDX-License-Identifier: Apache-2.0
//
// The TextBatch of models of which a token sees only what comes before it: a
// text's prompt fills a cache of its own, which then joins that of the others.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_BATCH_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_BATCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/objective/common/decode_loop.h"
#include "plugins/objective/common/next_token.h"
#include "plugins/objective/common/sample_token.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/text_batch.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

class CausalBatch final : public TextBatch {
 public:
  // What a text's options come to, with the config's and the model's own.
  using SamplerFor =
      std::function<absl::StatusOr<SamplerOptions>(const SampleOptions&)>;

  // UNIMPLEMENTED if the model's cache is no JoinableCache.
  static absl::StatusOr<std::unique_ptr<CausalBatch>> Create(
      TokenModel* model, bool keep_context, SamplerFor sampler_for);

  absl::Status Add(BatchedText text) override;
  size_t size() const override { return starting_.size() + rows_.size(); }
  absl::Status Step(UnitRunner& runner) override;
  int64_t token_bytes() const override { return token_bytes_; }

 private:
  struct Row {
    BatchedText of;  // its prompt has moved to the text
    SamplerOptions sampler;
    TokenDraw draw;
  };
  // A text whose prompt isn't in the cache yet, or not all of it.
  struct Start {
    Row row;
    std::vector<int64_t> text;
    std::unique_ptr<CausalContext> context;  // null: none of it
    at::Tensor logits;  // [1, V], of the first new token: all of it
  };

  CausalBatch(TokenModel* model, bool keep_context, int64_t token_bytes,
              SamplerFor sampler_for);

  absl::Status AddPrompts(UnitRunner& runner);
  // Adds a piece of the prompt. Returns its length.
  absl::StatusOr<int64_t> AddPiece(Start* start, UnitRunner& runner);
  // The same; what it throws becomes a status, too.
  absl::StatusOr<int64_t> TryPiece(Start* start, UnitRunner& runner);
  absl::Status AddTokens(UnitRunner& runner);
  // Adds a token to `text` by logits [V], which change. Returns whether the
  // text goes on; otherwise it is done.
  static bool Extend(absl::Span<float> logits, Row* row,
                     std::vector<int64_t>* text);
  // Gives the first of `starting_`, whose prompt is read, its first token, and
  // those that wait with the same prompt theirs.
  void BeginTexts();
  static bool SharesPrompt(const Start& first, const Start& other);
  // Lets texts of one prompt be continued beside the others.
  void Join(std::vector<Start> starts, std::unique_ptr<CausalContext> context);
  // float32 logits [rows, V] on the CPU.
  absl::StatusOr<at::Tensor> NextLogits(UnitRunner& runner);
  void KeepRows(const std::vector<int64_t>& rows);

  TokenModel* const model_;
  const bool keep_context_;
  const int64_t token_bytes_;
  const SamplerFor sampler_for_;
  std::deque<Start> starting_;  // in the order in which they came
  // Of those that are continued. A single one stays in the context that has its
  // prompt, so that the next may begin with what it leaves.
  std::vector<Row> rows_;
  Texts texts_;
  std::unique_ptr<CausalContext> lone_;  // null: `cache_` has the rows, if any
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<CausalContext> left_;  // of the last single text
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_BATCH_H_
