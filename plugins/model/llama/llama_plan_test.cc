// SPDX-License-Identifier: Apache-2.0
//
// Compares PlanUnits with the actual allocations of one forward and backward.
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "plugins/model/common/plan_testing.h"
#include "plugins/model/llama/llama_testing.h"

namespace capstan::llama {
namespace {

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
  BindRandom(*model, compute);
  return model;
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
    // Logits of at most 64 MiB: in two chunks, and in three.
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

  void Compare(at::ScalarType compute, double bound) {
    const Shape& shape = GetParam();
    const std::unique_ptr<Llama> model = MakeModel(shape, compute);
    const MemoryByCategory planned =
        PlannedPeak(*model, shape.samples, shape.length, compute);
    Places places(*model, compute);
    model->BindGradients(&places);
    const at::Tensor tokens =
        at::randint(shape.vocab, {shape.samples, shape.length}, at::kLong);
    ExpectNear(planned, MeasuredPeak(*model, tokens, {tokens}), bound);
  }
};

TEST_P(LlamaPlanTest, Float32) { Compare(at::kFloat, 0.002); }

TEST_P(LlamaPlanTest, Bfloat16) { Compare(at::kBFloat16, 0.05); }

INSTANTIATE_TEST_SUITE_P(Shapes, LlamaPlanTest, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::llama
