// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_OPTIMIZER_ADAMW_FACTORS_H_
#define CAPSTAN_KERNELS_OPTIMIZER_ADAMW_FACTORS_H_

#include <ATen/core/Tensor.h>

#include <cmath>

#include "absl/types/optional.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {

// A step's constants, rounded once, the same for all kinds of state.
inline cuda::AdamWFactors AdamWFactorsOf(const AdamWOptions& o) {
  const double step = static_cast<double>(o.step);
  cuda::AdamWFactors f;
  f.gradient_scale = static_cast<float>(o.gradient_scale);
  f.decay = static_cast<float>(1.0 - o.learning_rate * o.weight_decay);
  f.weight1 = static_cast<float>(1.0 - o.beta1);
  f.beta2 = static_cast<float>(o.beta2);
  f.weight2 = static_cast<float>(1.0 - o.beta2);
  f.rate =
      static_cast<float>(o.learning_rate / (1.0 - std::pow(o.beta1, step)));
  f.root2 = static_cast<float>(std::sqrt(1.0 - std::pow(o.beta2, step)));
  f.epsilon = static_cast<float>(o.epsilon);
  return f;
}

// For buffers on the CPU; none: nothing changes.
inline absl::optional<cuda::AdamWFactors> AdamWFactorsOnHost(
    const AdamWOptions& o, const at::Tensor& device_scale) {
  const absl::optional<float> scale = HostScale(o.gradient_scale, device_scale);
  if (!scale.has_value()) return absl::nullopt;
  cuda::AdamWFactors f = AdamWFactorsOf(o);
  f.gradient_scale = *scale;
  return f;
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_ADAMW_FACTORS_H_
