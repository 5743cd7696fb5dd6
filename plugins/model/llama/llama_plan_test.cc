// SPDX-License-Identifier: Apache-2.0
//
// PlanUnits against what one forward and backward really allocate.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "plugins/model/llama/llama_testing.h"
#include "plugins/sdk/gradient_sink.h"
#include "plugins/sdk/memory.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/memory/tracking_allocator.h"

namespace capstan {
namespace llama {
namespace {

// As a strategy that copies each gradient as soon as it is there.
class DropGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor& parameter) override {
    parameter.mutable_grad().reset();
  }
};

// As a strategy that has the gradients' places from the start.
class Places final : public GradientSink {
 public:
  explicit Places(const Model& model) {
    for (const ParameterSpec& spec : model.parameters()) {
      places_.push_back(at::zeros(spec.shape));
    }
  }
  Place Open(int parameter) override {
    return {places_[parameter].detach(), /*add=*/false};
  }

 private:
  std::vector<at::Tensor> places_;
};

struct Shape {
  const char* name;
  int64_t hidden, inter, layers, heads, kv_heads, vocab;
  bool tied;
  int64_t samples, length;
  // Low-rank adapters on a frozen model, with dropout at that rate; 0: none.
  int64_t rank = 0;
  double dropout = 0.0;
};

std::unique_ptr<Llama> MakeModel(const Shape& shape, at::ScalarType compute) {
  Config config;
  config.set_hidden_size(shape.hidden);
  config.set_intermediate_size(shape.inter);
  config.set_num_hidden_layers(shape.layers);
  config.set_num_attention_heads(shape.heads);
  config.set_num_key_value_heads(shape.kv_heads);
  config.set_vocab_size(shape.vocab);
  config.set_tie_word_embeddings(shape.tied);
  std::unique_ptr<Llama> model = Make(config);
  if (shape.rank > 0) {
    LoraSpec lora;
    lora.rank = shape.rank;
    lora.dropout = shape.dropout;
    lora.target_modules = {"q_proj", "v_proj", "down_proj"};
    EXPECT_TRUE(model->AddLora(lora).ok());
  }
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& spec : model->parameters()) {
    parameters.push_back(at::randn(spec.shape)
                             .mul_(0.05)
                             .to(compute)
                             .requires_grad_(spec.trainable));
    if (!spec.trainable) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameters.back(), std::make_unique<DropGradient>());
  }
  model->Bind(std::move(parameters));
  return model;
}

// The peak of one forward and backward beyond what was there before.
MemoryByCategory Measure(Llama& model, const Shape& shape) {
  PlainRunner runner;
  const at::Tensor tokens =
      at::randint(shape.vocab, {shape.samples, shape.length}, at::kLong);
  TokenInput input;
  input.tokens = tokens;
  input.sample_positions = at::arange(shape.samples).to(at::kLong);
  const MemoryByCategory before = TrackedMemory().live;
  ResetTrackedPeak();
  {
    at::Tensor loss;
    {
      const MemoryScope scope(MemoryCategory::kActivations);
      loss = model.CrossEntropySum(input, {tokens}, runner);
    }
    const MemoryScope scope(MemoryCategory::kWorkspace);
    torch::autograd::backward({loss}, {at::full({}, 1e-3)});
  }
  MemoryByCategory peak = TrackedMemory().at_peak;
  for (int i = 0; i < kMemoryCategories; ++i) peak[i] -= before[i];
  return peak;
}

MemoryByCategory Predict(const Llama& model, const Shape& shape,
                         at::ScalarType compute) {
  const std::vector<UnitMemory> units =
      model.PlanUnits(shape.samples, shape.length, compute);
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

constexpr Shape kShapes[] = {
    {"tiny", 64, 172, 2, 4, 2, 256, true, 4, 64},
    {"mini", 256, 688, 6, 8, 4, 512, true, 4, 128},
    {"ungrouped", 128, 352, 3, 4, 4, 300, false, 2, 96},
    // The first gradients of an MLP meet few activations.
    {"few_rows", 256, 688, 2, 4, 2, 300, true, 1, 16},
    // Attention is wider than the MLP.
    {"narrow_mlp", 128, 64, 3, 8, 8, 64, false, 2, 128},
    // The embedding outweighs all else, and the logits come at once.
    {"large_vocabulary", 64, 160, 2, 4, 2, 20000, true, 1, 64},
    {"large_untied", 64, 160, 2, 4, 2, 20000, false, 1, 64},
    // Logits of 64 MiB at most: in two pieces, and in three.
    {"two_pieces", 64, 160, 2, 4, 2, 40000, true, 4, 150},
    {"two_pieces_untied", 64, 160, 2, 4, 2, 40000, false, 4, 150},
    {"three_pieces", 64, 160, 12, 4, 2, 48000, true, 8, 110},
    {"lora", 128, 344, 4, 4, 2, 512, true, 4, 96, 8},
    {"lora_dropout", 128, 344, 4, 4, 4, 512, false, 4, 96, 16, 0.1},
    {"lora_two_pieces", 64, 160, 2, 4, 2, 40000, true, 4, 150, 4},
};

class LlamaPlanTest : public ::testing::TestWithParam<Shape> {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    InstallTrackingAllocator();
  }

  // Whether each category is within `bound` of the total.
  void Compare(at::ScalarType compute, double bound) {
    const std::unique_ptr<Llama> model = MakeModel(GetParam(), compute);
    const MemoryByCategory planned = Predict(*model, GetParam(), compute);
    Places places(*model);
    if (compute == at::kFloat) model->BindGradients(&places);
    const MemoryByCategory measured = Measure(*model, GetParam());
    const double most = bound * static_cast<double>(Total(measured));
    EXPECT_NEAR(Total(planned), Total(measured), most);
    for (int i = 0; i < kMemoryCategories; ++i) {
      EXPECT_NEAR(planned[i], measured[i], most)
          << MemoryCategoryName(static_cast<MemoryCategory>(i));
    }
  }
};

TEST_P(LlamaPlanTest, Float32) { Compare(at::kFloat, 0.002); }

// oneDNN's products of 16-bit matrices may want memory of their own, which
// depends on the processor.
TEST_P(LlamaPlanTest, Bfloat16) { Compare(at::kBFloat16, 0.05); }

INSTANTIATE_TEST_SUITE_P(Shapes, LlamaPlanTest, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace llama
}  // namespace capstan
