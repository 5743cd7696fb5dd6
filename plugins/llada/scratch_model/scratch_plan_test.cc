// SPDX-License-Identifier: Apache-2.0
//
// Compares PlanUnits with the actual allocations of one forward and backward.
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "plugins/llada/scratch_model/llada_scratch.pb.h"
#include "plugins/model/common/plan_testing.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/plugin_for_test.h"

namespace capstan::llada_scratch {
namespace {

struct Shape {
  const char* name;
  int64_t vocab, width, layers, heads, length, samples;
  double dropout = 0.1;
};

constexpr Shape kShapes[] = {
    {"characters", 69, 96, 4, 4, 128, 4},
    {"no_dropout", 69, 96, 4, 4, 128, 4, 0.0},
    {"one_layer", 69, 96, 1, 4, 128, 4},
    {"tokens", 5000, 64, 3, 4, 128, 2},
    {"few_rows", 300, 256, 3, 4, 16, 1},
    {"few_rows_many_tokens", 3000, 128, 2, 4, 16, 1},
    {"two_pieces", 40000, 64, 2, 4, 150, 4},
};

class ScratchPlanTest : public ::testing::TestWithParam<Shape> {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    InstallTrackingAllocator();
  }

  static void Compare(at::ScalarType compute, double bound) {
    const Shape& shape = GetParam();
    Config config;
    config.set_vocab_size(shape.vocab);
    config.set_hidden_size(shape.width);
    config.set_num_hidden_layers(shape.layers);
    config.set_num_attention_heads(shape.heads);
    config.set_max_sequence_length(shape.length);
    config.set_dropout(shape.dropout);
    auto model = MakePlugin<Model>(config);
    ASSERT_TRUE(model.ok()) << model.status();
    BindRandom(**model, compute);
    const int64_t planned =
        Total(PlannedPeak(**model, shape.samples, shape.length, compute));
    const at::Tensor tokens =
        at::randint(shape.vocab, {shape.samples, shape.length}, at::kLong);
    const int64_t measured =
        Total(MeasuredPeak(*(*model)->token_model(), tokens, {tokens}));
    EXPECT_NEAR(planned, measured, bound * static_cast<double>(measured));
  }
};

TEST_P(ScratchPlanTest, Float32) { Compare(at::kFloat, 0.01); }

TEST_P(ScratchPlanTest, Bfloat16) { Compare(at::kBFloat16, 0.05); }

INSTANTIATE_TEST_SUITE_P(Shapes, ScratchPlanTest, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::llada_scratch
