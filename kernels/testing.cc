// SPDX-License-Identifier: Apache-2.0
#include "kernels/testing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/layers/block_parts.h"

namespace capstan::kernels {
namespace {

// One weight per element of `y`, exact in every type.
at::Tensor OutputWeights(const at::Tensor& y) {
  std::vector<double> weights(y.numel());
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = std::nearbyint(64.0 * std::cos(0.7 * i)) / 64.0;
  }
  return at::tensor(weights, at::kDouble).view(y.sizes());
}

Tensors Rounded(const Tensors& inputs, at::ScalarType dtype) {
  Tensors rounded;
  for (const at::Tensor& t : inputs) {
    rounded.push_back(t.is_floating_point() ? t.to(dtype).to(at::kDouble) : t);
  }
  return rounded;
}

// Compares (f(x + step d) - f(x - step d)) / (2 step) with grad f . d, for the
// weighted sum of the operator's output and random signs d, one input at a
// time.
void ExpectDifferencesMatch(const Operator& op, const Tensors& inputs,
                            const Tensors& results) {
  constexpr double kStep = 4e-3;
  size_t result = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].is_floating_point()) continue;
    const at::Tensor gradient = results[++result].to(at::kDouble);
    const at::Tensor d = at::where(Wave(inputs[i].sizes()) > 0, 1.0, -1.0);
    double sums[2];
    for (int side : {0, 1}) {
      Tensors moved;
      for (const at::Tensor& t : inputs) {
        moved.push_back(t.is_floating_point() ? t.to(at::kFloat) : t);
      }
      moved[i] = (inputs[i] + (side == 0 ? -kStep : kStep) * d).to(at::kFloat);
      const at::Tensor y = op(moved).detach().to(at::kDouble);
      sums[side] = (y * OutputWeights(y)).sum().item<double>();
    }
    const double size = (gradient * d).abs().sum().item<double>();
    EXPECT_NEAR((sums[1] - sums[0]) / (2 * kStep),
                (gradient * d).sum().item<double>(), 2e-3 * size + 2e-3)
        << "input " << i;
  }
}

}  // namespace

at::Tensor Wave(at::IntArrayRef shape, double size) {
  static double phase = 0.0;
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  std::vector<double> x(n);
  for (double& v : x) v = size * std::sin(phase += 1.618);
  return at::tensor(x, at::kDouble).view(shape);
}

Tensors RunBoth(const Operator& op, const Tensors& inputs,
                at::ScalarType dtype) {
  Tensors leaves;
  for (const at::Tensor& t : inputs) {
    leaves.push_back(t.is_floating_point()
                         ? t.to(dtype).detach().clone().requires_grad_(true)
                         : t);
  }
  const at::Tensor y = op(leaves);
  (y * OutputWeights(y).to(y.options())).sum().backward();
  Tensors results = {y.detach()};
  for (const at::Tensor& leaf : leaves) {
    if (leaf.is_floating_point()) results.push_back(leaf.grad());
  }
  return results;
}

double Difference(const at::Tensor& got, const at::Tensor& wanted) {
  if (!got.defined() || got.sizes() != wanted.sizes()) return 1e30;
  const double size = std::max(1.0, wanted.abs().max().item<double>());
  return (got.to(at::kDouble) - wanted).abs().max().item<double>() / size;
}

void ExpectSame(const Operator& fused, const Operator& plain,
                const Tensors& inputs) {
  const struct {
    at::ScalarType type;
    double bound;  // a few successive roundings
  } kTypes[] = {{at::kFloat, 3e-6}, {at::kBFloat16, 0.025}, {at::kHalf, 0.003}};
  for (const auto& [type, bound] : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    const Tensors rounded = Rounded(inputs, type);
    const Tensors wanted = RunBoth(plain, rounded, at::kDouble);
    const Tensors got = RunBoth(fused, rounded, type);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LT(Difference(got[i], wanted[i]), bound) << "result " << i;
    }
    if (type == at::kFloat) ExpectDifferencesMatch(fused, rounded, got);
  }
}

at::Tensor RopeTable(int64_t positions, int64_t head_dim, double theta) {
  std::vector<double> inverse_frequencies;
  for (int64_t i = 0; i < head_dim; i += 2) {
    inverse_frequencies.push_back(
        1.0 / std::pow(theta, static_cast<double>(i) / head_dim));
  }
  return RopeTable(positions, inverse_frequencies);
}

at::Tensor PlainNorm(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(at::mean(x * x, {-1}, true) + kEps) * weight;
}

}  // namespace capstan::kernels
