// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_STEP_H_
#define CAPSTAN_TRAINER_SESSION_STEP_H_

#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/data/data_loader.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/divergence.h"
#include "trainer/session/session.h"
#include "trainer/session/step_records.h"
#include "trainer/session/step_sums.h"

namespace capstan {

// One optimizer step: from its micro-batches to the update and its record.
//
// Every rank runs the same steps in the same order. What one rank learns alone
// (an error, a signal, a non-finite gradient) is reduced with the step's sums
// (step_sums.h), and all act on the result: before the update or, with deferred
// sums, one step later, while the update follows the device's own copy.
class TrainStep {
 public:
  TrainStep(Session* session, Divergence* divergence, StepRecords* records);

  // Once the strategy is set up; `profiler` may be null.
  absl::Status SetUp(ReadSums read, Profiler* profiler);

  // The next step, on `loader`'s batches. An error of this rank, or UNAVAILABLE
  // where another one failed.
  absl::Status Run(DataLoader& loader);

  // Reads the sums of the last step, if they are deferred, and acts on them:
  // before the run's numbers or weights are used for anything but steps.
  absl::Status CatchUp();

  // Forward and backward of one micro-batch of the training samples `samples`,
  // whose gradients are dropped by the next step. `completed`: this rank has
  // done all of its collectives, so that ranks can agree on what came of it.
  absl::Status Try(const std::vector<int64_t>& samples, bool* completed);

 private:
  absl::Status AccumulateGradients(DataLoader& loader, StepSums* mine);
  absl::Status MicroStep(DataLoader& loader, int index, StepSums* mine);
  absl::Status SumTotals(DataLoader& loader);
  absl::StatusOr<Batch> NextBatch(DataLoader& loader);
  LossSum Forward(const Batch& batch);
  void Backward(const at::Tensor& loss_sum);
  absl::Status ReduceSums(bool good, StepSums* sums);
  absl::Status ActOn(const StepSums& sums, int64_t step);
  void Update(double lr, double gradient_scale);
  absl::Status Conclude(const StepSums& sums, const IssuedStep& step);
  GradientRule Rule() const;

  Session& session_;
  Divergence& divergence_;
  StepRecords& records_;
  Profiler* profiler_ = nullptr;
  std::unique_ptr<DeferredSums> deferred_;  // null: read before the update
  IssuedStep issued_;                       // whose sums are deferred
  StepInfo info_;
  // What the loss sum is divided by in backward, on all ranks alike: about the
  // targets of a step, so that gradients have their usual size. The update
  // makes up for the difference to the exact count, known at the step's end.
  double nominal_targets_ = 1.0;

  // Of this step's micro-batches; on the device, since reading them would wait
  // for it.
  at::Tensor loss_sum_;
  at::Tensor squared_sum_;     // Strategy::GradientSquaredSum
  at::Tensor metric_sums_;     // LossSum::metrics; undefined: none
  std::deque<Batch> batches_;  // read ahead of their turn
  bool completed_ = true;      // this rank's collectives
  bool told_no_targets_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STEP_H_
