// SPDX-License-Identifier: Apache-2.0
//
// The numbers reduced over all ranks at the end of a step, and the step's
// outcome.
#ifndef CAPSTAN_TRAINER_SESSION_STEP_SUMS_H_
#define CAPSTAN_TRAINER_SESSION_STEP_SUMS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <limits>
#include <vector>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/exact_sum.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// A step's sums over micro-batches and ranks, without rounding, for runs whose
// bits don't depend on how their work is divided (train.deterministic on CPUs).
// Gradients are summed elsewhere.
struct ExactSums {
  ExactSum loss;
  ExactSum gradient_squared;
};

// Returns this rank's share of the squared norm of the summed gradient, over
// the slices that it owns (Strategy::OwnedSlices). Squares are added in double
// precision in blocks of 32 elements, counted from the parameter's first, and
// the blocks' sums without rounding. So the bits don't depend on where the
// parameter is divided, as long as slices begin at multiples of kFlatAlignment.
ExactSum GradientSquares(absl::Span<const OptimizerShard> shards,
                         const std::vector<OwnedSlice>& owned);

// All-reduces the sums in place and waits. Collective; throws
// CommunicationError.
void AllReduce(ProcessGroup& group, absl::Span<ExactSum> sums);

// What rank 0 adds to StepSums::stop_requests if its control file has grown: a
// number of its own would move where collectives divide the sums, and with that
// their last bits.
constexpr double kControlRequest = 1 << 20;
// Likewise if WorldChanges().
constexpr double kLeaveRequest = 1 << 21;
// What each rank adds that is to save before it leaves.
constexpr double kSaveRequest = 1 << 30;

// One rank's numbers, or their sums.
struct StepSums {
  double loss_sum = 0.0;
  double count = 0.0;   // targets
  double tokens = 0.0;  // as in LossSum
  double gradient_squared_sum = 0.0;
  double failed_ranks = 0.0;
  // Ranks that received a signal, kControlRequest, kLeaveRequest, kSaveRequest.
  double stop_requests = 0.0;
  double trained = 0.0;          // tokens with a loss
  double padding = 0.0;          // positions without a token
  double saves_written = 0.0;    // ranks with BackgroundSave::written
  double bad_samples = 0.0;      // passed over (train.skip_bad_samples)
  double mirrors_pending = 0.0;  // ranks with Mirror::pending
};

// All-reduces the sums in place and waits. Collective; throws
// CommunicationError. `memory`, null on all ranks or none, is this rank's and
// becomes the largest of each number. `exact`, likewise, replaces this rank's
// loss_sum and gradient_squared_sum.
void Reduce(ProcessGroup& group, StepSums* sums, GpuMemory* memory = nullptr,
            const ExactSums* exact = nullptr);

// How gradients of loss_sum * loss_scale / nominal_targets, from backward,
// become clipped gradients of the mean loss.
struct GradientRule {
  double nominal_targets = 1.0;
  double loss_scale = 1.0;
  double max_norm = 0.0;  // 0: no clipping
  // The next step's, if this one's gradients are finite, and if not.
  double next_if_finite = 1.0;
  double next_if_not = 1.0;
  // A larger mean loss is a spike, which is skipped if `skip_spikes`.
  double most_loss = std::numeric_limits<double>::infinity();
  bool skip_spikes = false;
};

struct StepOutcome {
  double grad_norm = 0.0;  // before clipping
  bool finite = true;      // loss and norm
  bool spike = false;      // the loss exceeds GradientRule::most_loss
  bool skipped = false;    // no update: not finite, no targets, or a spike
  double gradient_scale = 1.0;
};

StepOutcome OutcomeOf(const StepSums& sums, const GradientRule& rule);

// Returns whether the host reads a step's sums one step later, as it does on
// GPUs. The update and the next backward's loss scale use the device's own
// copy, so the host never waits for the device's latest work.
bool DefersSums(at::Device device);

// Reduces sums and computes the update's scale on the device, so that the host
// can issue the update before seeing them. One step at a time, on the device's
// current stream. The scale is bit-equal to OutcomeOf's.
class DeferredSums {
 public:
  // `ranks` is the number of ranks that report their memory, or 0. `metrics` is
  // how many numbers the objective's metrics are (MetricSums::numbers).
  explicit DeferredSums(at::Device device, int ranks = 0, int metrics = 0);

  // This rank's, for the next Reduce.
  void set_memory(const GpuMemory& memory) { memory_ = memory; }
  // After Read: the largest of each number over the ranks.
  const GpuMemory& largest_memory() const { return largest_memory_; }

  // Issues the reduction of `mine`, whose loss_sum and gradient_squared_sum are
  // replaced by these scalars where defined, and of the objective's metrics
  // ([metrics] float64; undefined: zeros). Collective.
  void Reduce(const StepSums& mine, const at::Tensor& loss_sum,
              const at::Tensor& gradient_squared_sum, const GradientRule& rule,
              ProcessGroup& group, const at::Tensor& metrics = {});
  // Whether there are sums to Read.
  bool pending() const { return pending_; }
  // After Reduce: OptimizerStep::device_scale, non-finite if the step is to be
  // skipped or a rank failed.
  const at::Tensor& scale() const { return scale_; }
  // After Reduce: the next step's loss scale, a float64 scalar; undefined if it
  // doesn't depend on this step.
  const at::Tensor& next_loss_scale() const { return next_loss_scale_; }
  // Waits for what Reduce issued, but not for later work.
  StepSums Read();
  // After Read: the metrics' sums over all ranks.
  const std::vector<double>& metrics() const { return metrics_; }

 private:
  const int ranks_;
  GpuMemory memory_;
  GpuMemory largest_memory_;
  // StepSums as float64, then each rank's memory, then the metrics; pinned for
  // a GPU.
  at::Tensor host_;
  at::Tensor sums_;  // the same on the device
  at::Tensor scale_, next_loss_scale_;
  absl::optional<c10::Event> read_;  // unset on the CPU
  std::vector<double> metrics_;
  bool pending_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STEP_SUMS_H_
