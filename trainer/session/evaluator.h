// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_EVALUATOR_H_
#define CAPSTAN_TRAINER_SESSION_EVALUATOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/exact_sum.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/run_checkpoints.h"
#include "trainer/session/session.h"

namespace capstan {

// Nothing is owned.
struct EvaluationRequest {
  Model* model = nullptr;
  Objective* objective = nullptr;
  const DatasetReader* data = nullptr;
  // Reads `data` and may skip bad samples; null if none may be skipped.
  const ForgivingReader* forgiving = nullptr;
  ProcessGroup* group = nullptr;
  UnitRunner* runner = nullptr;
  std::string objective_name = "objective";  // for errors
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

// Evaluates and samples between steps, and acts on the results (best
// checkpoint, early stop). Collective. A signal interrupts it and sets
// session->stopping.
class Evaluator {
 public:
  Evaluator(Session* session, RunCheckpoints* checkpoints);

  // Evaluates the current step unless already done.
  absl::Status Evaluate();
  // Generates texts if the config has prompts. `title`: "after step 50". A
  // failed sample is noted, and the run goes on.
  absl::Status Sample(const std::string& title);
  // Before the first step: the initial samples, or an evaluation and samples
  // interrupted before the run was resumed.
  absl::Status CatchUp();

 private:
  // Tracks the best loss and its consequences; the same on all ranks.
  absl::Status Remember(double eval_loss);
  absl::StatusOr<std::vector<Generation>> SampleAll(const std::string& title);
  absl::StatusOr<Generation> SampleOne(const SamplePrompt& prompt);
  absl::Status EndSample(const absl::Status& mine, bool in_forward,
                         StopPoll* poll);

  Session& session_;
  RunCheckpoints& checkpoints_;
  const google::protobuf::RepeatedPtrField<SamplePrompt>& prompts_;
  int64_t evaluated_step_ = -1;
  bool told_empty_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EVALUATOR_H_
