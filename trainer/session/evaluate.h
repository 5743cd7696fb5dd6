// SPDX-License-Identifier: Apache-2.0
//
// A model's loss on data, and what its objective measures.
#ifndef CAPSTAN_TRAINER_SESSION_EVALUATE_H_
#define CAPSTAN_TRAINER_SESSION_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/exact_sum.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/data/forgiving_reader.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// Nothing is owned.
struct EvaluationRequest {
  Model* model = nullptr;
  Objective* objective = nullptr;
  const DatasetReader* data = nullptr;
  // Reads `data` and may skip bad samples; null if none may be skipped.
  const ForgivingReader* forgiving = nullptr;
  ProcessGroup* group = nullptr;
  Mesh mesh;  // of the group; data ranks evaluate a part each
  UnitRunner* runner = nullptr;
  std::string objective_name = "objective";  // for errors
  std::string data_name = "eval_data";
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
  double count = 0.0;  // targets
  // What follows from the loss (Objective::DerivedFromLoss), and those with a
  // count by MetricTags::eval.
  TaggedNumbers tagged;
  // Unset if the objective measures nothing.
  absl::optional<Measurement> measurement;
};

// Adds a batch's Objective::StepTotals to `sums`, of the same length.
void AddStepTotals(const Objective& objective, const Batch& batch,
                   const StepInfo& info, absl::Span<ExactSum> sums);

// Evaluates without gradients. Collective, with the same result on all ranks.
// Losses and metrics of micro-batches are added without rounding, so that their
// order and the number of ranks don't matter. CANCELLED on all ranks, without
// side effects, within about a tenth of a second plus a forward after any rank
// received a signal.
absl::StatusOr<EvaluationResult> Evaluate(const EvaluationRequest& request);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EVALUATE_H_
