// SPDX-License-Identifier: Apache-2.0
//
// What OptimizerStep::device_scale asks of an update: it multiplies gradients
// like gradient_scale, and if it isn't finite, nothing changes.
#ifndef CAPSTAN_KERNELS_OPTIMIZER_GUARDED_STEP_H_
#define CAPSTAN_KERNELS_OPTIMIZER_GUARDED_STEP_H_

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstdint>

#include "absl/types/optional.h"

namespace capstan::kernels {

// Throws unless `t` is a contiguous buffer of `numel` elements and one of the
// types, on the device of `like`. optimizer: its name.
template <typename... Types>
void CheckBuffer(const char* optimizer, const at::Tensor& t,
                 const at::Tensor& like, int64_t numel, Types... types) {
  TORCH_CHECK(t.defined() && t.is_contiguous() && t.numel() == numel &&
                  t.device() == like.device() &&
                  ((t.scalar_type() == types) || ...),
              optimizer,
              " wants contiguous buffers of its lengths and dtypes on one "
              "device");
}
// The same of an update's gradient and, unless it is undefined, working copy.
inline void CheckGradientAndWorking(const char* optimizer,
                                    const at::Tensor& gradient,
                                    const at::Tensor& working,
                                    const at::Tensor& parameter) {
  const int64_t n = parameter.numel();
  CheckBuffer(optimizer, gradient, parameter, n, at::kFloat, at::kBFloat16,
              at::kHalf);
  CheckBuffer(optimizer, parameter, parameter, n, at::kFloat);
  if (!working.defined()) return;
  CheckBuffer(optimizer, working, parameter, n, at::kBFloat16, at::kHalf);
}

// By LibTorch's operators, without the host looking at the scale.
class GuardedStep {
 public:
  // device_scale: a float32 scalar, or undefined.
  GuardedStep(double gradient_scale, const at::Tensor& device_scale)
      : gradient_scale_(gradient_scale), device_scale_(device_scale) {
    if (device_scale.defined()) good_ = at::isfinite(device_scale);
  }

  // A scaled copy, in float32.
  at::Tensor Scaled(const at::Tensor& gradient) const {
    at::Tensor scaled = gradient.to(at::kFloat) * gradient_scale_;
    if (device_scale_.defined()) scaled.mul_(device_scale_);
    return scaled;
  }
  // to = value, or as it was.
  void Write(const at::Tensor& to, const at::Tensor& value) const {
    to.copy_(good_.defined() ? at::where(good_, value, to) : value);
  }

 private:
  const double gradient_scale_;
  const at::Tensor device_scale_;
  at::Tensor good_;
};

// The factor of gradients for buffers on the CPU; none: nothing changes.
inline absl::optional<float> HostScale(double gradient_scale,
                                       const at::Tensor& device_scale) {
  const auto scale = static_cast<float>(gradient_scale);
  if (!device_scale.defined()) return scale;
  const float factor = *device_scale.const_data_ptr<float>();
  if (!std::isfinite(factor)) return absl::nullopt;
  return scale * factor;
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_GUARDED_STEP_H_
