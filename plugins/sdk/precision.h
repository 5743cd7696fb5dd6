// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PRECISION_H_
#define CAPSTAN_PLUGINS_SDK_PRECISION_H_

#include <c10/core/ScalarType.h>

#include <string>

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

// The dtypes of a run. Strategies and the core read it; no strategy has code
// for a particular precision.
struct PrecisionPolicy {
  // The dtype of working parameters, forward, backward and autograd's
  // gradients.
  c10::ScalarType compute = c10::ScalarType::Float;
  // The dtype in which gradients are summed over micro-steps and ranks.
  c10::ScalarType reduce = c10::ScalarType::Float;
  // The dtype of the optimizer's parameters and state. If equal to `compute`,
  // there is only one copy of the parameters.
  c10::ScalarType master = c10::ScalarType::Float;
  absl::optional<LossScaling> loss_scaling;
};

// The device of a run; the least capable one if ranks differ.
struct DeviceFacts {
  bool gpu = false;
  // 10 * major + minor of a CUDA device (80 is 8.0); 0: unknown.
  int compute_capability = 0;
};

class Precision {
 public:
  virtual ~Precision();
  virtual PrecisionPolicy policy() const = 0;
  // Whether PolicyOn depends on the device; if not, the core doesn't query the
  // compute capability.
  virtual bool depends_on_device() const { return false; }
  // The policy on `device`, the same on all ranks. Constant.
  virtual PrecisionPolicy PolicyOn(const DeviceFacts& device) const {
    return policy();
  }
  // The --set argument to suggest where the device is slow in this precision:
  // "precision=capstan.fp32"; "": no suggestion.
  virtual std::string instead() const { return ""; }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PRECISION_H_
