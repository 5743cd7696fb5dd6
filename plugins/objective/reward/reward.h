// SPDX-License-Identifier: Apache-2.0
//
// Reward models (Ouyang et al., "Training language models to follow
// instructions with human feedback", 2022, section 3.5, equation 1): of a pair
// with the scores r_c of the preferred text and r_r of the other, the loss is
//   -log sigmoid(r_c - r_r - margin)
//       + center_rewards_coefficient * (r_c + r_r)^2
// as in TRL 1.16's RewardTrainer.compute_loss. Needs batches of pairs
// (plugins/sdk/dataset.h), of which it doesn't read the labels, perhaps with
// kMargins ("Llama 2", Touvron et al., 2023, equation 2), and a
// TokenModel with TextScores. A score is read where transformers' sequence
// classification does: at the last token that isn't the tokenizer's pad token,
// even if that is the text's eos; final/ has its id.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_REWARD_REWARD_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_REWARD_REWARD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/objective/reward/reward.pb.h"
#include "plugins/sdk/objective.h"

namespace capstan::reward {

// The loss is a mean over pairs.
class Reward final : public Objective {
 public:
  // FieldError for an invalid value.
  static absl::StatusOr<std::unique_ptr<Reward>> Create(const Config& config);

  // Notes the data's pad token.
  absl::Status Check(Model& model, const DatasetReader& data) const override;
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  bool allows_divided_rows() const override { return true; }
  bool has_whole_sums() const override { return true; }
  // Capstan.dpo's names, for scores.
  std::vector<MetricTags> metrics() const override;
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;
  // An error: a model of scores writes no text.
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override;

 private:
  explicit Reward(double centering) : centering_(centering) {}

  // [2 B] int64 on the CPU: where each text's score is read.
  at::Tensor LastTokens(const Batch& batch) const;

  const double centering_;
  mutable int64_t pad_ = -1;  // -1: none
};

}  // namespace capstan::reward

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_REWARD_REWARD_H_
