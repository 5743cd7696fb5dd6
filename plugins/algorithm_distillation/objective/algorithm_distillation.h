// SPDX-License-Identifier: Apache-2.0
//
// Imitation of learning histories: -log p(action) plus, for histories in
// regions, -log p(token type), each a mean over the rows that have one. Needs a
// HistoryModel; evaluates in context on a HistorySource.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_OBJECTIVE_ALGORITHM_DISTILLATION_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_OBJECTIVE_ALGORITHM_DISTILLATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/algorithm_distillation/history_model.h"
#include "plugins/algorithm_distillation/history_source.h"
#include "plugins/algorithm_distillation/objective/algorithm_distillation.pb.h"
#include "plugins/sdk/objective.h"

namespace capstan::algorithm_distillation {

// Tokens of one history, as a row of HistoryInput.
struct Tokens {
  std::vector<uint8_t> transitions;  // [size, columns]
  std::vector<HistoryToken> kinds;

  int64_t size() const { return static_cast<int64_t>(kinds.size()); }
};

// The part of a history shown to the model as the model acts. Independent of
// other histories: regions that they close have no effect here.
class Memory {
 public:
  explicit Memory(const HistoryForm& form)
      : form_(form), columns_{form.environment->spec().numbers} {}

  // The whole history to show, with a query for an observation.
  Tokens Show(const uint8_t* state) const;
  // The same without what the last ShowNew has shown, for a model with a cache;
  // or all of it, with *forget = true, if the cache must be cleared first.
  // Compressed only.
  Tokens ShowNew(const uint8_t* state, bool* forget);

  // Appends a transition, [columns], after an action.
  void Add(const std::vector<uint8_t>& transition);
  // Compressed: this region becomes the previous one, and a new one begins.
  void EndRegion();
  // Transitions of this region; plain: those shown.
  int64_t size() const {
    return static_cast<int64_t>(current_.size()) / columns_.count();
  }

 private:
  void AddMarker(HistoryToken kind, Tokens* tokens) const;

  const HistoryForm form_;
  const HistoryColumns columns_;
  std::vector<uint8_t> previous_;  // [steps, columns]
  std::vector<uint8_t> current_;
  bool opened_ = false;  // ShowNew has shown this region's beginning
  size_t shown_ = 0;     // bytes of current_ that it has shown
};

// A history to play: a task, and the keys of its random numbers.
struct Trial {
  int task = 0;
  uint64_t number = 0;  // of the task and stream, the same on any rank
};

struct TrialOptions {
  HistoryForm form;
  int64_t episodes = 0;
  uint64_t key = 0;  // RandomKey
  // Called after each episode with the fraction done, in [0, 1].
  std::function<void(double done)> progress = [](double) {};
  // Polled before each step of an episode; true: CANCELLED.
  std::function<bool()> stop = [] { return false; };
};

// Plays `episodes` consecutive episodes in each trial, without gradients.
// Samples actions from the softmax of the model's logits, keyed by trial,
// episode and step alone. A region ends if the model says so or it is full. The
// number of calls of the model depends only on the options. Returns [trials,
// episodes] returns, or INVALID_ARGUMENT if logits aren't finite, but only
// after all calls.
absl::StatusOr<std::vector<double>> PlayInContext(
    HistoryModel& model, absl::Span<const Trial> trials,
    const TrialOptions& options, UnitRunner& runner);

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

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_OBJECTIVE_ALGORITHM_DISTILLATION_H_
