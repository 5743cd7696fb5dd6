// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PRECISION_H_
#define CAPSTAN_PLUGINS_SDK_PRECISION_H_

#include <c10/core/ScalarType.h>

#include <string>

#include "absl/types/optional.h"
#include "kernels/context/fp8.h"

namespace capstan {

// Dynamic loss scaling (Micikevicius et al., 2018, section 3.2; growth as in
// torch.amp.GradScaler) by powers of two, so that nothing is rounded.
struct LossScaling {
  double initial_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // finite steps before the scale grows
  double min_scale = 1.0;
};

// The dtypes of a run. No strategy has code for a particular precision.
struct PrecisionPolicy {
  // Of working parameters, forward, backward and autograd's gradients.
  c10::ScalarType compute = c10::ScalarType::Float;
  c10::ScalarType reduce = c10::ScalarType::Float;  // of summed gradients
  // Of the optimizer's parameters and state; one copy if equal to `compute`.
  c10::ScalarType master = c10::ScalarType::Float;
  absl::optional<LossScaling> loss_scaling;
};

// The device of a run; the least capable one if ranks differ.
struct DeviceFacts {
  bool gpu = false;
  // 10 * major + minor of the CUDA compute capability; 0: unknown.
  int compute_capability = 0;
};

class Precision {
 public:
  virtual ~Precision();
  virtual PrecisionPolicy policy() const = 0;
  // Whether PolicyOn needs the device; if not, the core doesn't query it.
  virtual bool depends_on_device() const { return false; }
  // Returns the policy on `device`, the same on all ranks. Constant.
  virtual PrecisionPolicy PolicyOn(const DeviceFacts& device) const {
    return policy();
  }
  // What to --set where this is slow ("precision=capstan.fp32"); "": nothing.
  virtual std::string instead() const { return ""; }
  // Returns whether linear layers multiply in 8 bits, and sets how. Their
  // activations, `compute`, are then bfloat16. Constant.
  virtual bool UsesFp8(Fp8Spec* how) const;  // Room1

 private:
  // Room to grow (plugin.h).
  virtual void Room2();
  virtual void Room3();
  virtual void Room4();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PRECISION_H_
