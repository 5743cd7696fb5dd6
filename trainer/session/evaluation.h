// SPDX-License-Identifier: Apache-2.0
//
// Evaluates a model: loss over a reader's samples, the objective's metrics and
// its other measurements.
#ifndef CAPSTAN_TRAINER_SESSION_EVALUATION_H_
#define CAPSTAN_TRAINER_SESSION_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// Nothing is owned.
struct EvaluationRequest {
  Model* model = nullptr;
  Objective* objective = nullptr;
  const DatasetReader* data = nullptr;
  ProcessGroup* group = nullptr;
  UnitRunner* runner = nullptr;
  Strategy* strategy = nullptr;  // null: each rank has the whole model
  int64_t micro_batch_size = 1;
  int64_t max_batches = 0;  // over all ranks; 0: all data
  uint64_t seed = 0;        // the run's
  bool last = false;        // after the run's last step
  // Include measurements more expensive than the loss (StepInfo::thorough).
  bool thorough = false;
  // Called with the completed fraction of the measurement, in [0, 1].
  std::function<void(double done)> measuring = [](double) {};
  // Called with the completed fraction of the loss, in [0, 1].
  std::function<void(double done)> progress = [](double) {};
};

struct EvaluationResult {
  double loss_sum = 0.0;
  double count = 0.0;    // targets
  TaggedNumbers tagged;  // by MetricTags::eval; only those with a count
  // Unset: the objective measures nothing.
  absl::optional<Measurement> measurement;
};

// Adds a batch's Objective::StepTotals to `sums`, of the same length.
void AddStepTotals(const Objective& objective, const Batch& batch,
                   const StepInfo& info, std::vector<double>* sums);

// Collective, with the same result on all ranks; without gradients. CANCELLED
// on all ranks if any received a signal, within about a tenth of a second plus
// a forward, leaving no trace.
absl::StatusOr<EvaluationResult> Evaluate(const EvaluationRequest& request);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EVALUATION_H_
