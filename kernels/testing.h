// SPDX-License-Identifier: Apache-2.0
//
// For tests: compares fused operators, values and gradients, with plain
// formulas on ATen's operators in float64 under autograd.
#ifndef CAPSTAN_KERNELS_TESTING_H_
#define CAPSTAN_KERNELS_TESTING_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "kernels/context/recompute.h"

namespace capstan::kernels {

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<at::Tensor(const Tensors&)>;

constexpr double kEps = 1e-5;  // of norms

// While it exists, RecomputesMlp().
struct RecomputingMlp {
  explicit RecomputingMlp(bool recomputes = true) {
    SetRecomputesMlp(recomputes);
  }
  ~RecomputingMlp() { SetRecomputesMlp(false); }
};

// Smooth float64 numbers without a pattern that could hide a bug.
at::Tensor Wave(at::IntArrayRef shape, double size = 1.0);

// Runs `op` on copies of the inputs in `dtype`, and backward from a fixed
// weighting of its output; returns the output and the gradient of each
// floating-point input.
Tensors RunBoth(const Operator& op, const Tensors& inputs,
                at::ScalarType dtype);

// The largest difference, relative to the larger of 1 and the largest absolute
// value of `wanted`.
double Difference(const at::Tensor& got, const at::Tensor& wanted);

// Compares `fused` in float32, bfloat16 and float16 with `plain` in float64 on
// the same numbers (rounded to the dtype first), and the gradients of `fused`
// in float32 with finite differences of its own values.
void ExpectSame(const Operator& fused, const Operator& plain,
                const Tensors& inputs);

// The table of angles position * theta^(-2i / head_dim): [positions, head_dim].
at::Tensor RopeTable(int64_t positions, int64_t head_dim, double theta);

// weight * x / sqrt(mean(x^2) + kEps).
at::Tensor PlainNorm(const at::Tensor& x, const at::Tensor& weight);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_TESTING_H_
