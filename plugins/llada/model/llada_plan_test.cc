// SPDX-License-Identifier: Apache-2.0
//
// Compares PlanUnits with the actual allocations of one forward and backward,
// with bidirectional attention.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include "plugins/llada/model/llada.h"
#include "plugins/model/common/plan_testing.h"

namespace capstan::llada {
namespace {

constexpr int64_t kSamples = 4, kLength = 128;

struct Shape {
  const char* name;
  int64_t width, inner, layers, heads, kv_heads, vocab;
  int64_t rank = 0;  // of adapters on a frozen model; 0: none
};

constexpr Shape kShapes[] = {
    {"small", 128, 352, 3, 4, 4, 300},
    {"grouped", 256, 688, 3, 8, 4, 512},
    {"lora", 128, 344, 4, 4, 4, 512, 8},
    // Logits of at most 64 MiB: in two chunks.
    {"two_pieces", 64, 160, 2, 4, 4, 40000},
};

class LladaPlanTest : public ::testing::TestWithParam<Shape> {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    InstallTrackingAllocator();
  }

  static std::unique_ptr<Llada> Make(at::ScalarType compute) {
    const Shape& shape = GetParam();
    Config config;
    config.set_d_model(shape.width);
    config.set_mlp_hidden_size(shape.inner);
    config.set_n_layers(shape.layers);
    config.set_n_heads(shape.heads);
    config.set_n_kv_heads(shape.kv_heads);
    config.set_vocab_size(shape.vocab);
    auto model = Llada::Create(config);
    EXPECT_TRUE(model.ok()) << model.status();
    if (shape.rank > 0) {
      LoraSpec lora;
      lora.rank = shape.rank;
      lora.target_modules = {"q_proj", "v_proj", "ff_out"};
      EXPECT_TRUE((*model)->AddLora(lora).ok());
    }
    BindRandom(**model, compute);
    return *std::move(model);
  }

  // Rows truncated to different lengths.
  static at::Tensor CutRows() {
    const at::Tensor positions = at::empty({kSamples, kLength}, at::kLong);
    int64_t* out = positions.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < kSamples; ++row) {
      const int64_t end = kLength * (row + 1) / (kSamples + 1);
      for (int64_t i = 0; i < kLength; ++i) *out++ = i < end ? i : i - end;
    }
    return positions;
  }

  // With a target at each position, or at the masked half of them.
  static MemoryByCategory Measure(Llada& model, bool masked) {
    const at::Tensor tokens =
        at::randint(GetParam().vocab, {kSamples, kLength}, at::kLong);
    TokenTargets targets = {tokens};
    targets.weights = at::rand(tokens.sizes());
    if (masked) targets.tokens = at::where(targets.weights < 0.5, tokens, -100);
    return MeasuredPeak(model, tokens, targets, CutRows());
  }

  static void Compare(at::ScalarType compute, double bound) {
    const std::unique_ptr<Llada> model = Make(compute);
    const MemoryByCategory planned =
        PlannedPeak(*model, kSamples, kLength, compute);
    Places places(*model, compute);
    model->BindGradients(&places);
    ExpectNear(planned, Measure(*model, /*masked=*/false), bound);
    // Any share of the tokens may be masked: the plan is for all.
    EXPECT_LT(Total(Measure(*model, /*masked=*/true)),
              (1.0 + bound) * Total(planned));
  }
};

TEST_P(LladaPlanTest, Float32) { Compare(at::kFloat, 0.005); }

// LibTorch's products of 16-bit matrices may allocate memory that depends on
// the processor.
TEST_P(LladaPlanTest, Bfloat16) { Compare(at::kBFloat16, 0.05); }

INSTANTIATE_TEST_SUITE_P(Shapes, LladaPlanTest, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::llada
