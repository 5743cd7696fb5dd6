// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/toy_training.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace capstan {
namespace conformance {
namespace {

constexpr double kMomentum = 0.9;
constexpr double kDecay = 0.1;

}  // namespace

PrecisionPolicy ToyFp32() { return PrecisionPolicy(); }

PrecisionPolicy ToyBf16() {
  PrecisionPolicy policy;
  policy.compute = c10::ScalarType::BFloat16;
  return policy;
}

PrecisionPolicy ToyFp16() {
  PrecisionPolicy policy;
  policy.compute = c10::ScalarType::Half;
  // As large as the toy's gradients allow.
  policy.loss_scaling = LossScaling();
  policy.loss_scaling->initial_scale = 4096.0;
  return policy;
}

void ToyUpdate(double learning_rate, const at::Tensor& gradient,
               const at::Tensor& momentum, const at::Tensor& master) {
  at::NoGradGuard no_grad;
  momentum.mul_(kMomentum).add_(gradient);
  master.mul_(1.0 - learning_rate * kDecay).add_(momentum, -learning_rate);
}

void ToyOptimizer::Update(const OptimizerStep& step,
                          const std::vector<ParameterSpec>&,
                          OptimizerShard& shard, absl::Span<at::Tensor> state) {
  at::NoGradGuard no_grad;
  ToyUpdate(step.learning_rate,
            shard.gradient.to(shard.master.scalar_type()) * step.gradient_scale,
            state[0], shard.master);
  if (shard.working.defined()) shard.working.copy_(shard.master);
}

}  // namespace conformance
}  // namespace capstan
