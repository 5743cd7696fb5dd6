// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/loss_scaler.h"

#include <algorithm>

namespace capstan {

LossScaler::LossScaler(const absl::optional<LossScaling>& policy)
    : policy_(policy) {
  if (policy_.has_value()) scale_ = policy_->initial_scale;
}

bool LossScaler::at_minimum() const {
  return !policy_.has_value() || scale_ <= policy_->min_scale;
}

void LossScaler::Restore(double scale, int64_t good_steps) {
  if (!policy_.has_value() || scale <= 0) return;
  scale_ = scale;
  good_steps_ = good_steps;
}

void LossScaler::Update(bool finite) {
  if (!policy_.has_value()) return;
  if (!finite) {
    scale_ = std::max(policy_->min_scale, scale_ * policy_->backoff_factor);
    good_steps_ = 0;
    return;
  }
  if (++good_steps_ == policy_->growth_interval) {
    scale_ *= policy_->growth_factor;
    good_steps_ = 0;
  }
}

}  // namespace capstan
