// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_STEP_H_
#define CAPSTAN_TRAINER_SESSION_STEP_H_

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/data/data_loader.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/digests.h"
#include "trainer/session/divergence.h"
#include "trainer/session/loss_spikes.h"
#include "trainer/session/micro_step_graph.h"
#include "trainer/session/non_finite_steps.h"
#include "trainer/session/session.h"
#include "trainer/session/step_records.h"
#include "trainer/session/step_sums.h"

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
  absl::Status SetUp(ReadSums read, Profiler* profiler, DataOrder order);

  // Runs the next step on `loader`'s batches. Returns this rank's error, or
  // UNAVAILABLE if another one failed.
  absl::Status Run(DataLoader& loader);

  // Reads and acts on the last step's sums if they are deferred. Call before
  // using the run's numbers or weights for anything but steps.
  absl::Status CatchUp() { return CatchUp(/*late=*/false); }

  // Whether a loss spike asks for the last checkpoint (LossSpikes::GO_BACK);
  // resets it. Call after CatchUp.
  bool TakeGoBack() { return std::exchange(go_back_, false); }
  // Whether one may: with deferred sums that shows a step later.
  bool go_back() const { return go_back_; }

  // Forward and backward of one micro-batch of training samples `samples`; the
  // next step drops its gradients. `completed`: this rank has finished all its
  // collectives, so that ranks can agree on the outcome.
  absl::Status Try(const std::vector<int64_t>& samples, bool* completed);

 private:
  absl::Status AccumulateGradients(DataLoader& loader, StepSums* mine);
  absl::Status MicroStep(DataLoader& loader, int index, StepSums* mine);
  absl::Status SumTotals(DataLoader& loader);
  void SumExactly(bool good);
  absl::Status UpdateUnlessSkipped(const StepSums& sums, double lr);
  absl::StatusOr<Batch> NextBatch(DataLoader& loader);
  LossSum Forward(const Batch& batch, UnitRunner& runner);
  // What backward begins with, as far as the host knows it.
  double HostScale() const;
  at::Tensor BackwardScale(const at::Tensor& loss_sum) const;
  void Backward(const at::Tensor& loss_sum, const at::Tensor& scale);
  // The loss is detached.
  LossSum ForwardBackward(const Batch& batch);
  void SetUpGraphs();
  absl::Status ReduceSums(bool good, StepSums* sums);
  // `late`: the next step's gradients are there already.
  absl::Status CatchUp(bool late);
  absl::Status ActOn(const StepSums& sums, int64_t step);
  absl::Status Update(double lr, double gradient_scale);
  absl::Status Conclude(const StepSums& sums, const IssuedStep& step,
                        bool late);
  absl::Status Backpropagate(int64_t step, const ReadOneBatch& read,
                             bool* completed);
  absl::optional<double> JudgeLoss(const StepSums& sums,
                                   const StepOutcome& outcome);
  std::vector<BadSample> BadSamplesOfStep() const;
  GradientRule Rule() const;

  Session& session_;
  const LossSpikeJudge spikes_;
  Divergence& divergence_;
  StepRecords& records_;
  Profiler* profiler_ = nullptr;
  std::unique_ptr<DeferredSums> deferred_;   // null: read before the update
  std::unique_ptr<MicroStepGraphs> graphs_;  // null: as usual
  IssuedStep issued_;                        // whose sums are deferred
  StepInfo info_;
  // Divisor of the loss sum in backward, the same on all ranks: approximately a
  // step's targets, so that gradients have their usual size. The update
  // corrects for the exact count, known at the end of the step.
  double nominal_targets_ = 1.0;

  // Over this step's micro-batches; on the device, since reading it would
  // synchronize.
  at::Tensor loss_sum_;
  std::vector<at::Tensor> losses_;  // of each micro-batch
  at::Tensor squared_sum_;          // Strategy::GradientSquaredSum
  at::Tensor metric_sums_;          // LossSum::metrics; undefined: none
  // Of this rank in this step, in the place of loss_sum_ and squared_sum_;
  // unset: those serve.
  absl::optional<ExactSums> exact_;
  std::unique_ptr<RunDigests> digests_;       // null: none are written
  absl::optional<GpuMemory> largest_memory_;  // of all ranks; unset: deferred
  std::deque<Batch> batches_;                 // prefetched
  bool completed_ = true;                     // this rank's collectives
  bool told_no_targets_ = false;
  DataOrder order_;
  bool go_back_ = false;
  NonFiniteSteps non_finite_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STEP_H_
