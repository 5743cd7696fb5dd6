// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_LOSS_SCALER_H_
#define CAPSTAN_TRAINER_SESSION_LOSS_SCALER_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/optional.h"
#include "plugins/sdk/precision.h"

namespace capstan {

// The factor on the loss before backward that keeps small gradients
// representable in float16. It depends only on the steps' outcomes, which all
// ranks share, so ranks never disagree. It stays 1 without a policy.
class LossScaler {
 public:
  explicit LossScaler(const absl::optional<LossScaling>& policy)
      : policy_(policy),
        scale_(policy.has_value() ? policy->initial_scale : 1) {}

  double scale() const { return scale_; }
  int64_t good_steps() const { return good_steps_; }
  bool enabled() const { return policy_.has_value(); }
  // Whether the scale can't go lower: skipping more steps won't help.
  bool at_minimum() const {
    return !policy_.has_value() || scale_ <= policy_->min_scale;
  }

  // Restores the state of a checkpoint. A `scale` of 0 is from a run without
  // loss scaling and is ignored.
  void Restore(double scale, int64_t good_steps) {
    if (!policy_.has_value() || scale <= 0) return;
    scale_ = scale;
    good_steps_ = good_steps;
  }
  // Call after each step with whether its gradients were finite.
  void Update(bool finite) {
    if (!policy_.has_value()) return;
    if (!finite) {
      scale_ = std::max(policy_->min_scale, scale_ * policy_->backoff_factor);
      good_steps_ = 0;
    } else if (++good_steps_ == policy_->growth_interval) {
      scale_ *= policy_->growth_factor;
      good_steps_ = 0;
    }
  }

  // What scale() will be after Update(finite).
  double ScaleAfter(bool finite) const {
    LossScaler next = *this;
    next.Update(finite);
    return next.scale();
  }

 private:
  absl::optional<LossScaling> policy_;
  double scale_;
  int64_t good_steps_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_LOSS_SCALER_H_
