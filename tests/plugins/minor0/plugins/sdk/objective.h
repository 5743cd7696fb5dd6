// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_
#define CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "dataset.h"
#include "measurement.h"
#include "model.h"

namespace capstan {

// A loss as a sum and a count: the core divides by the count over all ranks
// and micro-batches of a step, never a mean of means.
struct LossSum {
  at::Tensor sum;      // scalar float32, with gradient in training
  int64_t count = 0;   // targets; 0 is legal and contributes nothing
  int64_t tokens = 0;  // input tokens (or samples) seen, for throughput
  // [metrics().size(), 2] float64 on the model's device, without gradient: of
  // each a sum and what it is to be divided by. Undefined where there are none.
  at::Tensor metrics;
};

// A number beside the loss, by the tags under which training and evaluation
// log it: "train/acc_action", "eval/acc_action".
struct MetricTags {
  std::string train;
  std::string eval;
};

// What an objective is told of the step, or evaluation, of which a batch is a
// part.
struct StepInfo {
  // The run's, for random numbers by the batch's "sample_position".
  uint64_t seed = 0;
  bool training = false;
  // StepTotals, summed over all batches of all ranks.
  std::vector<double> totals;
};

// What Measure is told.
struct MeasureInfo {
  uint64_t seed = 0;  // the run's
  int rank = 0;
  int world_size = 1;
  bool last = false;  // after the run's last step
  // To be called now and then with the part that is done, in [0, 1].
  std::function<void(double done)> progress = [](double) {};
};

// How to sample. Unset fields take the objective's own config.
struct SampleOptions {
  int64_t max_new_tokens = 0;  // 0: the objective's config
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  bool greedy = false;
  uint64_t seed = 0;
  bool stop_at_eos = true;
  // Ends of text beside the model's own, for stop_at_eos.
  std::vector<int64_t> stop_tokens;
  // Called with each token as it is chosen; may be null.
  std::function<void(int64_t token)> on_token;
  // In place of on_token where tokens aren't chosen from left to right: called
  // after each step with the whole text, prompt included, and the model's
  // mask_token where none is chosen yet; may be null.
  std::function<void(absl::Span<const int64_t> text)> on_text;
};

class Objective {
 public:
  virtual ~Objective();

  // Whether model and data fit this objective and each other, e.g. "the data
  // has token ids up to 255, the model's vocab_size is 128".
  virtual absl::Status Check(Model& model, const DatasetReader& data) const = 0;

  // The targets in a batch, as Compute will count them, without computing.
  virtual int64_t CountTargets(const Batch& batch,
                               const StepInfo& info) const = 0;

  // A loss of several means, over different counts, isn't one sum and one
  // count until the counts of the whole step are known: so many numbers of its
  // batches the core sums over all micro-batches and ranks, before the first
  // forward, into StepInfo::totals. 0: none, at no cost.
  virtual int step_totals() const { return 0; }
  // This batch's.
  virtual std::vector<double> StepTotals(const Batch& batch,
                                         const StepInfo& info) const {
    return {};
  }

  // The tags of LossSum::metrics. Constant.
  virtual std::vector<MetricTags> metrics() const { return {}; }

  // Runs the model on a batch that is on the model's device.
  virtual LossSum Compute(Model& model, const Batch& batch,
                          const StepInfo& info, UnitRunner& runner) = 0;

  // This rank's share of what there is to measure beyond the loss, in each
  // evaluation: as many numbers on all ranks, 0 where they are another's, since
  // they are summed over the ranks. All ranks run the model equally often, for
  // a strategy may have collectives in forward. Without gradients. Empty:
  // nothing is measured.
  virtual absl::StatusOr<std::vector<double>> Measure(
      Model& model, const DatasetReader& eval_data, const MeasureInfo& info,
      UnitRunner& runner) {
    return std::vector<double>();
  }
  // What the sums of Measure mean.
  virtual Measurement Summarize(absl::Span<const double> sums,
                                const MeasureInfo& info) const {
    return {};
  }

  // Continues `prompt` (token ids, at least one), without gradients; returns
  // prompt and continuation. UNIMPLEMENTED if the objective can't.
  virtual absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_OBJECTIVE_H_
