// SPDX-License-Identifier: Apache-2.0
//
// Learns from rewards of answers that the model samples. A step's rows are
// answers: each prompt is read as often as it gets answers, Rollout samples
// them with the weights at hand and rewards them, and Compute weighs their
// tokens' log-probabilities (losses.h) by what their rewards are worth beside
// those of the prompt's other answers (advantages.h).
//
// Answers are keyed by their place in the run's order: a step's are the same
// under every strategy and on any number of ranks.
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_GRPO_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_GRPO_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/grpo/objective/answer_metrics.h"
#include "plugins/grpo/objective/answers.h"
#include "plugins/grpo/objective/grpo.pb.h"
#include "plugins/grpo/objective/losses.h"
#include "plugins/grpo/objective/rollouts.h"
#include "plugins/grpo/objective/side_thread.h"
#include "plugins/grpo/objective/turns.h"
#include "plugins/grpo/rewards/rewards.h"
#include "plugins/objective/common/causal_sampler.h"

namespace capstan::grpo {

class Grpo final : public CausalObjective {
 public:
  static absl::StatusOr<std::unique_ptr<Grpo>> Create(const Config& config);

  absl::Status Check(Model& model, const DatasetReader& data) const override;
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  std::vector<MetricTags> metrics() const override;
  // Of batches after a rollout; without a loss in evaluations. The sum is
  // undefined, and the answers' metrics are there, where a loss of pairs gets
  // not all answers to a prompt, as `who` computes them.
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;
  // In an evaluation each prompt gets one answer.
  absl::StatusOr<std::vector<double>> Measure(Model& model,
                                              const DatasetReader& eval_data,
                                              const MeasureInfo& info,
                                              UnitRunner& runner) override;
  Measurement Summarize(absl::Span<const double> sums,
                        const MeasureInfo& info) const override;

  // Each of the ranks that share rows samples a part of the answers, and all
  // get all.
  bool allows_divided_rows() const override { return true; }
  bool has_whole_sums() const override { return true; }
  bool has_rollouts() const override { return true; }
  RolloutPlan rollout_plan() const override { return plan_; }
  absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                       const RolloutInfo& info, UnitRunner& runner) override;
  // The step's answers, if the next one trains on them, too, and what reward
  // models said of an answer, by which a resumed run's first rollout tells that
  // one was replaced.
  std::string SaveState() const override;
  absl::Status RestoreState(absl::string_view state) override;

 private:
  struct Places;

  Grpo(Config config, SampleOptions sampling)
      : CausalObjective(std::move(sampling)), config_(std::move(config)) {}

  absl::Status CheckModel(Model& model) const override;
  // The places of the batches' rows: of all, or of those that this one of the
  // ranks that share them samples.
  absl::StatusOr<Places> PlacesOf(const std::vector<Batch>& batches,
                                  const RolloutInfo& info, bool all) const;
  // Samples and rewards this rank's answers of the step, and makes those of
  // `places` ready.
  absl::Status RollOut(Model& model, const Places& sampled,
                       const Places& places, const RolloutInfo& info,
                       UnitRunner& runner);
  // Gives all ranks what `places` have, if several steps train on it.
  void ShareSteps(const Places& places, const RolloutInfo& info);
  void Judge(const Places& places, const RolloutInfo& info);
  // Under the model that training started from.
  absl::Status AddReference(Model& model, const Places& places,
                            const RolloutInfo& info, UnitRunner& runner);
  // Under the model as it is.
  void SetReference(Model& model, const Places& places, UnitRunner& runner);
  // While it waits for programs the run can be stopped, by `all_done`, as in
  // Converse. `conversations` stay as they are, unless it is.
  absl::StatusOr<Rewards::Scores> Score(
      const std::function<bool(bool done)>& all_done,
      std::vector<Conversation>* conversations);

  const Config config_;
  LossOptions loss_;
  AnswerOptions sampling_;
  RolloutPlan plan_;
  std::shared_ptr<Rewards> rewards_;
  std::unique_ptr<ToolProgram> tools_;  // null: none
  std::unique_ptr<const AnswerMetrics> told_;
  // Of the training data, from Check on; and the most tokens of a row.
  mutable const Tokenizer* tokenizer_ = nullptr;
  mutable int64_t longest_ = 0;

  SideThread side_;  // asks rewards_

  std::string note_;  // for the user, from RestoreState

  bool more_steps_ = false;  // train on rollouts_
  // Of the first step that trains on rollouts_, RolloutInfo::first_position;
  // negative: none.
  int64_t first_position_ = -1;
  // A place for each answer of a step; others' are empty unless several steps
  // train on them or ranks share rows.
  std::vector<grpo::Rollout> rollouts_;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_GRPO_H_
