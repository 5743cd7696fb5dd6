// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_STEP_H_
#define CAPSTAN_TRAINER_SESSION_STEP_H_

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "kernels/context/fp8.h"
#include "trainer/data/data_loader.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/digests.h"
#include "trainer/session/divergence.h"
#include "trainer/session/loss_spikes.h"
#include "trainer/session/micro_steps.h"
#include "trainer/session/non_finite.h"
#include "trainer/session/receipts.h"
#include "trainer/session/session.h"
#include "trainer/session/step_in_flight.h"
#include "trainer/session/step_records.h"
#include "trainer/session/step_sums.h"
#include "trainer/session/step_witness.h"

namespace capstan {

// One optimizer step, from micro-batches to update and record.
//
// All ranks run the same steps in the same order. What one rank learns alone
// (an error, a signal, a non-finite gradient) is reduced with the step's sums
// (step_sums.h), and all ranks act on the result: before the update or, with
// deferred sums, one step later, while the update uses the device's own copy.
class TrainStep {
 public:
  TrainStep(Session* session, Divergence* divergence, StepRecords* records);

  // Call once the strategy is set up; `profiler` may be null.
  // `order`: the training data's.
  absl::Status SetUp(Profiler* profiler, DataOrder order);

  // Call once the run is set up: from here on it is checked (train.witness).
  // Collective.
  absl::Status BeginWitness();

  // Runs the next step on `loader`'s batches. Returns this rank's error, or
  // UNAVAILABLE if another one failed.
  absl::Status Run(DataLoader& loader);

  // Reads and acts on the last step's sums if they are deferred. Call before
  // using the run's numbers or weights for anything but steps.
  absl::Status CatchUp() { return CatchUp(/*late=*/false); }
  // Whether the last step's sums have been acted on.
  bool concluded() const { return !issued_.has_value(); }
  // Whether Run's error is of a rollout, before which the last step is whole.
  bool rollout_failed() const { return rollout_failed_; }
  // Whether Run has done no step, since the run is to stop. The last one's sums
  // have been acted on.
  bool left() const { return left_; }

  // Notes in the run's receipts, if it has any, that something else than an
  // update has replaced the weights. Collective.
  absl::Status NoteReplaced(const char* why);
  // Rank 0's error of writing receipts.
  absl::Status receipts_status() const;

  MicroSteps& micro_steps() { return micro_steps_; }
  // Null: the run has none.
  StepWitness* witness() { return witness_.get(); }

 private:
  // A step's stages, in order. An error ends the run.
  absl::Status BeginRecords();
  absl::StatusOr<StepInFlight> Begin();
  void FindWeightless(StepInFlight* step);
  absl::StatusOr<StepInFlight> Accumulate(StepInFlight step,
                                          DataLoader& loader);
  absl::StatusOr<StepInFlight> Reduce(StepInFlight step);
  absl::StatusOr<StepInFlight> Update(StepInFlight step);
  StepInFlight Count(StepInFlight step);
  // `late` says whether the strategy already holds the next step's gradients.
  absl::Status Conclude(StepInFlight step, bool late);

  // Accumulate, again while the witness asks for it.
  absl::StatusOr<StepInFlight> AccumulateWitnessed(StepInFlight step,
                                                   DataLoader& loader);

  // Of Accumulate.
  void SumUp(StepInFlight* step);
  // Puts what casts to 8 bits have lost behind the objective's metrics.
  void AddUnderflow(StepInFlight* step) const;

  // This rank's samples of its micro-batch `index` of the present step; none if
  // it is idle.
  std::vector<int64_t> SamplesOf(int64_t index);

  // Of Reduce.
  std::vector<BadSample> BadSamplesOfStep();
  absl::Status ReduceSums(StepInFlight* step);
  absl::Status CatchUp(bool late);
  GradientRule Rule() const;
  absl::Status ActOn(StepInFlight* step);

  // Of Update.
  absl::Status UpdateShards(const StepInFlight& step);
  absl::Status CallStrategy(const char* function,
                            const std::function<void()>& call);

  // Of Conclude.
  absl::optional<double> JudgeLoss(const StepInFlight& step);

  Session& session_;
  const LossSpikeJudge spikes_;
  Divergence& divergence_;
  StepRecords& records_;
  Profiler* profiler_ = nullptr;
  DataOrder order_;
  absl::optional<SampleSequence> samples_;  // of order_
  std::set<int64_t> forgotten_;             // train.forgotten_rows
  bool rollout_failed_ = false;
  bool left_ = false;
  std::unique_ptr<DeferredSums> deferred_;  // null: read before the update
  bool sums_exactly_ = false;               // in StepInFlight::exact
  MicroSteps micro_steps_;
  std::unique_ptr<RunDigests> digests_;    // null: none are written
  std::unique_ptr<RunReceipts> receipts_;  // likewise
  std::unique_ptr<StepWitness> witness_;   // null: nothing is checked
  // The latest step, while its sums are deferred.
  absl::optional<StepInFlight> issued_;
  std::unique_ptr<Fp8Underflow> underflow_;  // null: isn't counted
  bool told_no_targets_ = false;
  NonFiniteSteps non_finite_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STEP_H_
