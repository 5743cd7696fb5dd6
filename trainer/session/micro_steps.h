// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_MICRO_STEPS_H_
#define CAPSTAN_TRAINER_SESSION_MICRO_STEPS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/unit_runner.h"
#include "trainer/data/data_loader.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/metric_sums.h"
#include "trainer/session/micro_step_graph.h"
#include "trainer/session/session.h"
#include "trainer/session/step_in_flight.h"
#include "trainer/session/step_sums.h"

namespace capstan {

// Reads one micro-batch.
using ReadOneBatch = std::function<absl::StatusOr<Batch>()>;

// Runs forward and backward of a step's micro-batches.
class MicroSteps {
 public:
  explicit MicroSteps(Session* session);

  // Called once the strategy is set up. `deferred` may be null. `sums_exactly`
  // says whether totals are added without rounding, too.
  absl::Status SetUp(const DeferredSums* deferred, bool sums_exactly);

  // Runs micro-step `index` of `step`: reads its batch, runs forward and
  // backward, and adds loss and counts to `step`. The first one sums the step's
  // totals over all ranks.
  absl::Status Run(DataLoader& loader, int index, StepInFlight* step);

  // Runs forward and backward of one micro-batch of training samples `samples`;
  // the next step drops its gradients. Sets *completed if this rank has
  // finished all its collectives, so that ranks can agree on the outcome.
  absl::Status Try(const std::vector<int64_t>& samples, bool* completed);
  // Runs a step of a single micro-batch up to complete gradients, which replace
  // the existing ones, with the totals of the latest step unless `read` sets
  // others. `completed` as above.
  absl::Status Backpropagate(int64_t step, const ReadOneBatch& read,
                             bool* completed);

  // Divisor of the loss sum in backward, the same on all ranks: approximately a
  // step's targets, so that gradients have their usual size. The update
  // corrects for the exact count, known at the end of the step.
  double nominal_targets() const { return nominal_targets_; }
  // Like MicroStepGraphs::AddMemory. Returns whether there are graphs.
  bool AddMemory(GpuMemory* memory) const;
  // How StepInFlight::metrics are added up.
  const MetricSums& metric_sums() const { return metric_sums_; }

 private:
  absl::Status SumTotals(DataLoader& loader, StepInFlight* step);
  absl::StatusOr<Batch> NextBatch(DataLoader& loader, StepInFlight* step);
  LossSum Forward(const Batch& batch, UnitRunner& runner);
  void SetGrid() const;
  // The gradient with which backward begins, as far as the host knows it.
  // Zero: the micro-batch has no weight.
  double HostScale() const;
  at::Tensor BackwardScale(const at::Tensor& loss_sum) const;
  void Backward(const at::Tensor& loss_sum, const at::Tensor& scale);
  // The loss is detached.
  LossSum ForwardBackward(const Batch& batch);
  void SetUpGraphs();

  Session& session_;
  const MetricSums metric_sums_;
  const DeferredSums* deferred_ = nullptr;
  bool sums_exactly_ = false;
  double nominal_targets_ = 1.0;
  double weight_ = 1.0;  // of the present micro-batch: 0 or 1
  std::unique_ptr<MicroStepGraphs> graphs_;  // null: as usual
  // Of the latest step, whose micro-batches may be tried again.
  StepInfo info_;
  bool looked_outside_ = false;  // OutsideUnits, at the first forward
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MICRO_STEPS_H_
