// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTS_GOLDEN_GRADIENT_NORM_H_
#define CAPSTAN_TESTS_GOLDEN_GRADIENT_NORM_H_

#include <ATen/core/Tensor.h>

#include <cmath>
#include <vector>

namespace capstan {

// Of all gradients together; each parameter must have one.
inline double GradientNorm(const std::vector<at::Tensor>& parameters) {
  double sum = 0.0;
  for (const at::Tensor& p : parameters) {
    sum += std::pow(p.grad().norm().item<double>(), 2);
  }
  return std::sqrt(sum);
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_GOLDEN_GRADIENT_NORM_H_
