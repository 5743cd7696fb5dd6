// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_LOSS_SCALER_H_
#define CAPSTAN_TRAINER_SESSION_LOSS_SCALER_H_

#include <cstdint>

#include "absl/types/optional.h"
#include "plugins/sdk/precision.h"

namespace capstan {

// What the loss is multiplied by before backward, so that small gradients
// survive in float16. The scale is a function of the steps' verdicts, which
// all ranks share, so ranks never differ in it. Without a policy it stays 1.
class LossScaler {
 public:
  explicit LossScaler(const absl::optional<LossScaling>& policy);

  double scale() const { return scale_; }
  int64_t good_steps() const { return good_steps_; }
  bool enabled() const { return policy_.has_value(); }
  // Whether the scale can't go lower: more skipped steps won't help.
  bool at_minimum() const;

  // `scale` 0: of a run without loss scaling, so that this one begins anew.
  void Restore(double scale, int64_t good_steps);
  // After a step whose gradients were finite, or not.
  void Update(bool finite);

 private:
  absl::optional<LossScaling> policy_;
  double scale_ = 1.0;
  int64_t good_steps_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_LOSS_SCALER_H_
