// SPDX-License-Identifier: Apache-2.0
//
// Direct preference optimisation and its kin: losses of pairs of texts of which
// one was preferred, or of texts with labels (losses.h), whose pairs' second
// texts are mismatched answers. Needs batches of pairs (pair_batch.h) and a
// causal TokenModel with RowLosses. What the losses compare with, if anything,
// is the model that training started from: its log-probabilities come from a
// file, or from the model without its adapter, unit by unit beside the model
// itself (twin_runner.h).
#ifndef CAPSTAN_PLUGINS_DPO_OBJECTIVE_DPO_H_
#define CAPSTAN_PLUGINS_DPO_OBJECTIVE_DPO_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/dpo/objective/dpo.pb.h"
#include "plugins/dpo/objective/losses.h"
#include "plugins/dpo/objective/reference_file.h"
#include "plugins/objective/common/causal_sampler.h"

namespace capstan::dpo {

// The loss is a mean over pairs; ORPO's also has the mean over the tokens of
// all chosen texts, prompts included.
class Dpo final : public CausalObjective {
 public:
  static absl::StatusOr<std::unique_ptr<Dpo>> Create(const Config& config);

  // Opens the reference file, if the config names one.
  absl::Status Check(Model& model, const DatasetReader& data) const override;
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  // For ORPO: the chosen texts' tokens, and the pairs. For KTO: the sum of
  // log-ratios of mismatched answers, and their number.
  int step_totals() const override {
    return options_.loss == ORPO || options_.loss == KTO ? 2 : 0;
  }
  std::vector<double> StepTotals(const Batch& batch,
                                 const StepInfo& info) const override;
  bool allows_divided_rows() const override { return true; }
  bool has_whole_sums() const override { return true; }
  // TRL's, which logs them as "train/.." and "eval/..".
  std::vector<MetricTags> metrics() const override;
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;
  // For KTO: computes the log-ratios of the step's mismatched answers, so that
  // its KL term is of the step, and not of a micro-batch or a rank as TRL's.
  bool has_rollouts() const override {
    return options_.loss == KTO && !writes();
  }
  absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                       const RolloutInfo& info, UnitRunner& runner) override;
  // With write_reference, an evaluation of one pass: what Compute has seen is
  // brought together and written.
  absl::StatusOr<std::vector<double>> Measure(Model& model,
                                              const DatasetReader& eval_data,
                                              const MeasureInfo& info,
                                              UnitRunner& runner) override;
  Measurement Summarize(absl::Span<const double> sums,
                        const MeasureInfo& info) const override;

 private:
  struct Rows;

  Dpo(const Config& config, const LossOptions& options, SampleOptions sampling)
      : CausalObjective(std::move(sampling)),
        config_(config),
        options_(options) {}

  bool writes() const { return config_.write_reference(); }
  absl::Status CheckModel(Model& model) const override;
  absl::Status CheckReference(Model& model) const;
  // Which of a batch's 2 B texts.
  enum class Texts { kAll, kFirst, kSecond };
  // Log-probabilities of a batch's texts, the reference's included.
  Rows Forward(Model& model, const Batch& batch, const StepInfo& info,
               UnitRunner& runner, Texts texts = Texts::kAll) const;
  // The loss of answers, given those of `rows` that are computed.
  void AnswersLoss(const Batch& batch, const StepInfo& info, const Rows& rows,
                   LossSum* loss) const;
  // [2 B] on the device of `like`, from the file.
  at::Tensor FromFile(const Batch& batch, const at::Tensor& like) const;
  void Keep(const Batch& batch, const at::Tensor& logps);

  const Config config_;
  const LossOptions options_;
  // Opened by Check, since whoever only samples doesn't need it.
  mutable absl::optional<Reference> reference_;
  bool compared_models_ = false;
  // With write_reference: the model, and this rank's pairs by their index.
  std::string fingerprint_;
  std::map<int64_t, std::pair<int64_t, ReferenceLogps>> kept_;
};

}  // namespace capstan::dpo

#endif  // CAPSTAN_PLUGINS_DPO_OBJECTIVE_DPO_H_
