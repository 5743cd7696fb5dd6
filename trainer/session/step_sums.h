// SPDX-License-Identifier: Apache-2.0
//
// The numbers that all ranks reduce at the end of a step, and what follows from
// them.
#ifndef CAPSTAN_TRAINER_SESSION_STEP_SUMS_H_
#define CAPSTAN_TRAINER_SESSION_STEP_SUMS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "absl/types/optional.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Of one rank, until they are summed over the ranks.
struct StepSums {
  double loss_sum = 0.0;
  double count = 0.0;   // targets
  double tokens = 0.0;  // as in LossSum
  double gradient_squared_sum = 0.0;
  double failed_ranks = 0.0;
  double stop_requests = 0.0;  // ranks that a signal has come to
  double trained = 0.0;        // tokens with a loss
  double padding = 0.0;        // positions without a token
};

// Sums them over the ranks, in place, and waits. Collective; throws
// CommunicationError.
void Reduce(ProcessGroup& group, StepSums* sums);

// How gradients become those of the mean loss, clipped. Backward's are of
// loss_sum * loss_scale / nominal_targets.
struct GradientRule {
  double nominal_targets = 1.0;
  double loss_scale = 1.0;
  double max_norm = 0.0;  // 0: not clipped
};

struct StepOutcome {
  double grad_norm = 0.0;  // before clipping
  bool finite = true;      // loss and norm
  bool skipped = false;    // no update: not finite, or no targets
  double gradient_scale = 1.0;
};

StepOutcome OutcomeOf(const StepSums& sums, const GradientRule& rule);

// When the host reads a step's sums.
enum class ReadSums {
  kAuto,  // deferred on GPUs without loss scaling; else before the update
  kBeforeUpdate,
  // A step later: the update reads the device's own copy, and the host never
  // waits for the device's newest work. Not for loss scaling, whose next scale
  // depends on the sums.
  kDeferred,
};

// Sums that are reduced, and turned into the update's scale, on the device, so
// that the host can issue the update without having seen them. One step at a
// time. On the device's current stream; the scale is OutcomeOf's, bit by bit.
class DeferredSums {
 public:
  explicit DeferredSums(at::Device device);

  // Issues the reduction of `mine`, with these scalars in place of its loss_sum
  // and gradient_squared_sum where they are defined. Collective.
  void Reduce(const StepSums& mine, const at::Tensor& loss_sum,
              const at::Tensor& gradient_squared_sum, const GradientRule& rule,
              ProcessGroup& group);
  // Whether there are sums to Read.
  bool pending() const { return pending_; }
  // After Reduce: OptimizerStep::device_scale, not finite where the step is to
  // be skipped or a rank has failed.
  const at::Tensor& scale() const { return scale_; }
  // Waits for what Reduce issued, and for nothing after it.
  StepSums Read();

 private:
  at::Tensor host_;  // StepSums as float64; pinned for a GPU
  at::Tensor sums_;  // the same on the device
  at::Tensor scale_;
  absl::optional<c10::Event> read_;  // where the device isn't the CPU
  bool pending_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STEP_SUMS_H_
