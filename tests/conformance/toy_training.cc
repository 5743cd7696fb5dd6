// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/toy_training.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <cmath>

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

bool ToyNeedsWhole(const Model& model, int parameter) {
  return model.role(parameter) == ParameterRole::kMatrix;
}

void ToyMatrixUpdate(double learning_rate, bool whole,
                     const at::Tensor& gradient, const at::Tensor& momentum,
                     const at::Tensor& block, const at::Tensor& count,
                     const at::Tensor& master) {
  at::NoGradGuard no_grad;
  momentum.mul_(kMomentum).add_(gradient);
  count.add_(1);
  at::Tensor direction = momentum;
  if (whole) {
    const at::Tensor x = momentum / (momentum.norm() + 1e-3);
    direction = 1.5 * x - 0.5 * at::matmul(at::matmul(x, x.t()), x);
  } else {
    const int64_t numel = gradient.numel();
    at::Tensor padded =
        at::zeros({block.numel() * kToyBlock}, gradient.options());
    padded.narrow(0, 0, numel).copy_(gradient.reshape({-1}).abs());
    block.copy_(at::maximum(
        block, padded.view({-1, kToyBlock}).amax(1).to(block.scalar_type())));
    const at::Tensor scale =
        block.to(master.scalar_type()).repeat_interleave(kToyBlock);
    direction =
        momentum / (1.0 + scale.narrow(0, 0, numel).view(momentum.sizes()));
  }
  const double rate = learning_rate / std::sqrt(count.item<int64_t>());
  master.mul_(1.0 - learning_rate * kDecay).add_(direction, -rate);
}

std::vector<std::string> ToyOptimizer::state_names() const {
  if (!matrices_) return {"momentum"};
  return {"momentum", "block", "count"};
}

std::vector<OptimizerStateSpec> ToyOptimizer::state_specs() const {
  if (!matrices_) return {{"momentum"}};
  return {{"momentum"},
          {"block", at::kDouble, kToyBlock},
          {"count", at::kLong, 1, /*per_parameter=*/1}};
}

void ToyOptimizer::Update(const OptimizerStep& step,
                          const std::vector<ParameterSpec>& specs,
                          OptimizerShard& shard, absl::Span<at::Tensor> state) {
  at::NoGradGuard no_grad;
  const at::Tensor gradient =
      shard.gradient.to(shard.master.scalar_type()) * step.gradient_scale;
  if (!matrices_) {
    ToyUpdate(step.learning_rate, gradient, state[0], shard.master);
  }
  for (size_t i = 0; matrices_ && i < shard.ranges.size(); ++i) {
    const ParameterRange& range = shard.ranges[i];
    const bool whole = ToyNeedsWhole(*model_, range.parameter);
    const auto part = [&](const at::Tensor& flat) {
      const at::Tensor elements = flat.narrow(0, range.offset, range.length);
      return whole ? elements.view(specs[range.parameter].shape) : elements;
    };
    ToyMatrixUpdate(step.learning_rate, whole, part(gradient), part(state[0]),
                    state[1].narrow(0, range.offset / kToyBlock,
                                    (range.length + kToyBlock - 1) / kToyBlock),
                    state[2].narrow(0, static_cast<int64_t>(i), 1),
                    part(shard.master));
  }
  if (shard.working.defined()) shard.working.copy_(shard.master);
}

}  // namespace conformance
}  // namespace capstan
