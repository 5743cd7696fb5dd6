// SPDX-License-Identifier: Apache-2.0
//
// What all ranks know of a step, and what follows from it.
#ifndef CAPSTAN_TRAINER_SESSION_VERDICT_H_
#define CAPSTAN_TRAINER_SESSION_VERDICT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "absl/types/optional.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Sums over ranks; before they are summed, of one rank.
struct Verdict {
  double loss_sum = 0.0;
  double count = 0.0;   // targets
  double tokens = 0.0;  // as LossSum has them
  double gradient_squared_sum = 0.0;
  double failed_ranks = 0.0;
  double stop_requests = 0.0;
  double trained = 0.0;  // tokens with a loss
  double padding = 0.0;  // positions without a token
};

// How gradients are made those of the mean loss, and clipped. The gradients
// are of loss_sum * loss_scale / nominal_targets.
struct GradientRule {
  double nominal_targets = 1.0;
  double loss_scale = 1.0;
  double max_norm = 0.0;  // 0: not clipped
};

struct Judgement {
  double grad_norm = 0.0;  // before clipping
  bool finite = true;      // loss and norm
  bool skipped = false;    // no update: not finite, or no targets
  double gradient_scale = 1.0;
};

Judgement Judge(const Verdict& verdict, const GradientRule& rule);

// A verdict that is summed and judged on the device, so that the host can issue
// the update without having seen it, and reads it later. One at a time. On the
// device's current stream; the values are Judge's, bit by bit.
class LateVerdict {
 public:
  explicit LateVerdict(at::Device device);

  // Issues the sum over the ranks of `mine`; its loss_sum and
  // gradient_squared_sum are replaced by these scalars, where they are defined.
  // Collective.
  void Issue(const Verdict& mine, const at::Tensor& loss_sum,
             const at::Tensor& gradient_squared_sum, const GradientRule& rule,
             ProcessGroup& group);
  bool issued() const { return issued_; }
  // After Issue: OptimizerStep::device_scale, not finite where the step is to
  // be skipped or a rank has failed.
  const at::Tensor& scale() const { return scale_; }
  // Waits until what Issue has issued is there, and for nothing after it.
  Verdict Read();

 private:
  at::Tensor host_;  // Verdict as float64; pinned for a GPU
  at::Tensor sums_;  // the same on the device
  at::Tensor scale_;
  absl::optional<c10::Event> read_;  // where the device isn't the CPU
  bool issued_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_VERDICT_H_
