// SPDX-License-Identifier: Apache-2.0
//
// For tests: compares PlanUnits with the actual allocations of one forward and
// backward.
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_PLAN_TESTING_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_PLAN_TESTING_H_

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/context/gradient_sink.h"
#include "kernels/context/wide_gradient_sink.h"
#include "kernels/memory_testing.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/model.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/memory/tracking_allocator.h"

namespace capstan {
// Acts as a strategy that allocates the gradients' places in advance: float32,
// for parameters of 16 bits, too.
class Places final : public GradientSink, public WideGradientSink {
 public:
  Places(const Model& model, at::ScalarType compute)
      : wide_(compute != at::kFloat) {
    for (const ParameterSpec& spec : model.parameters()) {
      places_.push_back(at::zeros(spec.shape));
    }
  }
  Place Open(int parameter) override { return wide_ ? Place() : Of(parameter); }
  Place OpenWide(int parameter) override {
    return wide_ ? Of(parameter) : Place();
  }

 private:
  Place Of(int parameter) const {
    return {places_[parameter].detach(), /*add=*/false};
  }

  const bool wide_;
  std::vector<at::Tensor> places_;
};

inline void BindRandom(Model& model, at::ScalarType compute) {
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& spec : model.parameters()) {
    parameters.push_back(at::randn(spec.shape)
                             .mul_(0.05)
                             .to(compute)
                             .requires_grad_(spec.trainable));
    if (!spec.trainable) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameters.back(), std::make_unique<DropGradient>());
  }
  model.Bind(std::move(parameters));
}

// The peak of one forward and backward, relative to the start, for `tokens`
// [samples, length]; `positions` may be undefined.
inline MemoryByCategory MeasuredPeak(TokenModel& model,
                                     const at::Tensor& tokens,
                                     const TokenTargets& targets,
                                     const at::Tensor& positions = {}) {
  PlainRunner runner;
  TokenInput input;
  input.tokens = tokens;
  input.positions = positions;
  input.sample_positions = at::arange(tokens.size(0)).to(at::kLong);
  const MemoryByCategory before = TrackedMemory().live;
  ResetTrackedPeak();
  {
    at::Tensor loss;
    {
      const MemoryScope scope(MemoryCategory::kActivations);
      loss = model.CrossEntropySum(input, targets, runner);
    }
    const MemoryScope scope(MemoryCategory::kWorkspace);
    torch::autograd::backward({loss}, {at::full({}, 1e-3)});
  }
  MemoryByCategory peak = TrackedMemory().at_peak;
  for (int i = 0; i < kMemoryCategories; ++i) peak[i] -= before[i];
  return peak;
}

inline MemoryByCategory PlannedPeak(const Model& model, int64_t samples,
                                    int64_t length, at::ScalarType compute) {
  const std::vector<UnitMemory> units =
      model.PlanUnits(samples, length, compute);
  EXPECT_EQ(units.size(), model.units().size());
  StrategyPlan strategy;
  strategy.backward_workspace.resize(units.size());
  for (const ParameterSpec& spec : model.parameters()) {
    if (!spec.trainable) continue;
    int64_t& largest = strategy.backward_workspace[spec.unit];
    largest =
        std::max<int64_t>(largest, spec.numel() * c10::elementSize(compute));
  }
  return PlanMemory(strategy, /*optimizer_state=*/0, units,
                    ActivationCheckpointing(), /*on_gpu=*/false)
      .at_peak;
}

// Whether each category is within `bound` of the total.
inline void ExpectNear(const MemoryByCategory& planned,
                       const MemoryByCategory& measured, double bound) {
  const double most = bound * static_cast<double>(Total(measured));
  EXPECT_NEAR(Total(planned), Total(measured), most);
  for (int i = 0; i < kMemoryCategories; ++i) {
    EXPECT_NEAR(planned[i], measured[i], most)
        << MemoryCategoryName(static_cast<MemoryCategory>(i));
  }
}

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_PLAN_TESTING_H_
