// SPDX-License-Identifier: Apache-2.0
//
// Imitation of learning histories: -log p(action) plus, for histories in
// regions, -log p(token type), each a mean over the rows that have one. Needs a
// HistoryModel; evaluates in context on a HistorySource.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_ALGORITHM_DISTILLATION_ALGORITHM_DISTILLATION_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_ALGORITHM_DISTILLATION_ALGORITHM_DISTILLATION_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/history_source.h"
#include "plugins/objective/algorithm_distillation/algorithm_distillation.pb.h"
#include "plugins/sdk/objective.h"

namespace capstan::algorithm_distillation {

// Reads a batch's "transitions", "kinds", "lengths" and "action", and
// "token_type" if present; see AdHistory.
class AlgorithmDistillation final : public Objective {
 public:
  static absl::StatusOr<std::unique_ptr<AlgorithmDistillation>> Create(
      const Config& config);

  absl::Status Check(Model& model, const DatasetReader& data) const override;
  // Rows: each has a token type, though not each has an action.
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  // Rows, and rows with an action.
  int step_totals() const override { return 2; }
  std::vector<double> StepTotals(const Batch& batch,
                                 const StepInfo& info) const override;
  // Named as the original's scalars.
  std::vector<MetricTags> metrics() const override;
  std::string unit() const override { return "samples"; }
  // Scales the sum so that sum / count over the whole step is the sum of the
  // two means, however the rows are split into micro-batches and ranks.
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;

  // The returns of this rank's histories, [tasks, streams, episodes].
  absl::StatusOr<std::vector<double>> Measure(Model& model,
                                              const DatasetReader& eval_data,
                                              const MeasureInfo& info,
                                              UnitRunner& runner) override;
  Measurement Summarize(absl::Span<const double> sums,
                        const MeasureInfo& info) const override;

  // UNIMPLEMENTED: histories aren't text.
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override;

 private:
  explicit AlgorithmDistillation(const Config& config) : config_(config) {}

  int64_t Episodes(bool last) const;
  int64_t Streams() const;
  absl::Status CheckTasks(const HistorySource& source) const;

  const Config config_;
};

}  // namespace capstan::algorithm_distillation

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_ALGORITHM_DISTILLATION_ALGORITHM_DISTILLATION_H_
