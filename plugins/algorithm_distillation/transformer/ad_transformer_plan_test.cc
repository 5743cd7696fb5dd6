// SPDX-License-Identifier: Apache-2.0
//
// Compares PlanUnits with the actual allocations of one forward and backward.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "plugins/algorithm_distillation/transformer/ad_transformer_testing.h"
#include "plugins/model/common/plan_testing.h"

namespace capstan::ad_transformer {
namespace {

constexpr int64_t kSamples = 64, kLength = 80;

Config Sizes() {
  Config config;
  config.set_embedding(64);
  config.set_layers(4);
  config.set_heads(4);
  config.set_n_transit(kLength);
  return config;
}

int64_t Measured(AdTransformer& model) {
  HistoryInput input = Histories(std::vector<int64_t>(kSamples, kLength),
                                 kLength, /*compressed=*/false);
  input.sample_positions = at::arange(kSamples);
  PlainRunner runner;
  const MemoryByCategory before = TrackedMemory().live;
  ResetTrackedPeak();
  {
    at::Tensor loss;
    {
      const MemoryScope scope(MemoryCategory::kActivations);
      loss = model.LastLogits(input, runner).sum();
    }
    const MemoryScope scope(MemoryCategory::kWorkspace);
    torch::autograd::backward({loss}, {at::full({}, 1.0)});
  }
  return Total(TrackedMemory().at_peak) - Total(before);
}

void Compare(at::ScalarType compute, double bound) {
  at::set_num_threads(1);
  InstallTrackingAllocator();
  const auto model = Make(Sizes());
  for (at::Tensor& p : BindTo(*model, compute)) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        p, std::make_unique<DropGradient>());
  }
  const int64_t measured = Measured(*model);
  EXPECT_NEAR(Total(PlannedPeak(*model, kSamples, kLength, compute)), measured,
              bound * static_cast<double>(measured));
}

TEST(AdTransformerPlanTest, Float32) { Compare(at::kFloat, 0.03); }

TEST(AdTransformerPlanTest, Bfloat16) { Compare(at::kBFloat16, 0.25); }

}  // namespace
}  // namespace capstan::ad_transformer
