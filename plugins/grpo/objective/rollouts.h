// SPDX-License-Identifier: Apache-2.0
//
// What a step is trained on: prompts, as a batch has them, and, once answers
// are sampled and rewarded, these as rows, as a batch's tensors, and as bytes
// for checkpoints.
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ROLLOUTS_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ROLLOUTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/grpo/rewards/probe.h"
#include "plugins/sdk/dataset.h"

namespace capstan::grpo {

// Of batches after a rollout, beside kInputIds, kTokenCounts and kLabels, which
// only answers have. [B, T] float32, as kLabels: of the token at that place.
inline constexpr char kOldLogProbs[] = "old_log_probs";
inline constexpr char kReferenceLogProbs[] = "reference_log_probs";  // if used
inline constexpr char kAdvantages[] = "advantages";         // [B] float32
inline constexpr char kTruncated[] = "truncated";           // [B] int64, 0 or 1
inline constexpr char kAnswerMetrics[] = "answer_metrics";  // [B, M] float64

// The tokens of a batch's prompts, and their rows' JSON, of its kRowText.
std::vector<std::vector<int64_t>> PromptsOf(const Batch& batch);
std::vector<std::string> RowTexts(const Batch& batch);

// An answer; in sums over ranks, zeros but on the rank whose row it is.
struct Rollout {
  std::vector<int64_t> text;  // prompt and answer
  int64_t prompt = 0;         // its tokens
  // Places in `text` of what the model didn't write, which isn't trained on:
  // ascending pairs of begin and end.
  std::vector<int64_t> told;
  bool truncated = false;
  // Of each of the answer's tokens when it was sampled, 0 of what was told, and
  // under the reference, if there is one.
  std::vector<float> log_probs;
  std::vector<float> reference;
  double advantage = 0.0;
  std::vector<double> metrics;  // NaN: doesn't apply

  int64_t answer() const { return static_cast<int64_t>(text.size()) - prompt; }
};

// The tensors of `rows`, on `device`; rows are padded at the end to the longest
// or, on a GPU, to LengthOnGpu, up to `most`. kSamplePosition isn't among them.
Batch BatchOf(absl::Span<const Rollout* const> rows, at::Device device,
              int64_t most = 0);

// Gives each rank what the others have, where `rows` has a place for each of a
// step's answers and each answer is of one rank; the others' are empty. `sum`
// is RolloutInfo::all_sum.
void Share(const std::function<void(absl::Span<double>)>& sum,
           std::vector<Rollout>* rows);

// What a checkpoint has.
struct Saved {
  // Of the first step that trains on `rows`, RolloutInfo::first_position.
  int64_t first_position = -1;
  std::vector<Rollout> rows;  // may be empty
  Probes probes;
};
// "": there is nothing to save.
std::string SaveState(const Saved& saved);
// INVALID_ARGUMENT if SaveState hasn't made it.
absl::StatusOr<Saved> ReadState(absl::string_view state);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ROLLOUTS_H_
