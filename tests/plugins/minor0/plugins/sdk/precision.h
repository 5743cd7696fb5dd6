// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PRECISION_H_
#define CAPSTAN_PLUGINS_SDK_PRECISION_H_

#include <c10/core/ScalarType.h>

#include "absl/types/optional.h"

namespace capstan {

// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018,
// section 3.2; the growth rule of torch.amp.GradScaler). Powers of two only,
// so that scaling never rounds.
struct LossScaling {
  double initial_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  // Steps without a non-finite gradient before the scale grows.
  int64_t growth_interval = 2000;
  double min_scale = 1.0;
};

// What a precision means, under every strategy alike. Strategies and the core
// read it; no strategy has code for one precision.
struct PrecisionPolicy {
  // The working copy of the parameters, and so forward, backward and the
  // gradients that autograd makes.
  c10::ScalarType compute = c10::ScalarType::Float;
  // Gradients are accumulated over micro-steps and summed over ranks in it.
  c10::ScalarType reduce = c10::ScalarType::Float;
  // Parameters as the optimizer sees them, and its state. If it equals
  // `compute`, there is one copy of the parameters, not two.
  c10::ScalarType master = c10::ScalarType::Float;
  absl::optional<LossScaling> loss_scaling;
};

class Precision {
 public:
  virtual ~Precision();
  virtual PrecisionPolicy policy() const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PRECISION_H_
