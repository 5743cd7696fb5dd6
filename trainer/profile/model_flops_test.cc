// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/model_flops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace {

constexpr int64_t kHidden = 8;
constexpr int64_t kVocab = 100;
constexpr int64_t kInner = 20;
constexpr int64_t kWidth = 6;  // of attention's heads
constexpr int64_t kLayer =
    kWidth * kHidden * 2 + 2 * 2 * kHidden + 3 * kInner * kHidden;

// A trainable pair of matrices of rank 1 beside layer 1's q_proj.
const std::vector<ParameterSpec> kAdapter = {
    {"q_proj.lora_A.weight", {1, kHidden}, 2},
    {"q_proj.lora_B.weight", {kWidth, 1}, 2}};

std::vector<ParameterSpec> TwoLayers(
    bool tied, bool trainable, const std::vector<ParameterSpec>& more = {}) {
  std::vector<ParameterSpec> specs;
  specs.push_back({"model.embed_tokens.weight", {kVocab, kHidden}, 0});
  specs.back().read_in_backward = false;
  if (tied) specs.back().other_units = {3};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const int unit = 1 + layer;
    specs.push_back({name + "input_layernorm.weight", {kHidden}, unit});
    const std::pair<const char*, std::vector<int64_t>> matrices[] = {
        {"self_attn.q_proj.weight", {kWidth, kHidden}},
        {"self_attn.k_proj.weight", {2, kHidden}},
        {"self_attn.v_proj.weight", {2, kHidden}},
        {"self_attn.o_proj.weight", {kHidden, kWidth}},
        {"mlp.gate_proj.weight", {kInner, kHidden}},
        {"mlp.up_proj.weight", {kInner, kHidden}},
        {"mlp.down_proj.weight", {kHidden, kInner}}};
    for (const auto& [matrix, shape] : matrices) {
      specs.push_back({name + matrix, shape, unit});
    }
  }
  if (!tied) specs.push_back({"lm_head.weight", {kVocab, kHidden}, 3});
  for (ParameterSpec& spec : specs) spec.trainable = trainable;
  specs.insert(specs.end(), more.begin(), more.end());
  return specs;
}

IdleModel ModelOf(std::vector<ParameterSpec> specs) {
  return {std::move(specs), {"embed", "layers.0", "layers.1", "head"}};
}

TEST(ModelFlopsTest, SixForEachElementOfAMatrix) {
  const double matrices = 2 * kLayer + kVocab * kHidden;
  for (const bool tied : {false, true}) {
    const ModelFlops flops = FlopsOf(ModelOf(TwoLayers(tied, true)), nullptr);
    EXPECT_EQ(flops.unknown, "");
    EXPECT_EQ(flops.all.per_token, 6 * matrices) << tied;
    // 12 L H Q.
    EXPECT_EQ(flops.all.per_token_and_length, 12 * 2 * kWidth);
    EXPECT_EQ(flops.Of(10, 4), 10 * (6 * matrices + 4 * 12 * 2 * kWidth));
    EXPECT_EQ(flops.Recomputed(10, 4), 0);
  }
}

TEST(ModelFlopsTest, FrozenMatricesHaveNoGradient) {
  const ModelFlops flops =
      FlopsOf(ModelOf(TwoLayers(/*tied=*/false, /*trainable=*/false, kAdapter)),
              nullptr);
  const double adapter = kHidden + kWidth;
  // Nothing goes back through layer 0.
  EXPECT_EQ(flops.all.per_token,
            2 * kLayer + 4 * kLayer + 6 * adapter + 4 * kVocab * kHidden);
  EXPECT_EQ(flops.all.per_token_and_length, (4 + 12) * kWidth);
}

TEST(ModelFlopsTest, RecomputedForward) {
  const ModelFlops flops = FlopsOf(ModelOf(TwoLayers(false, true)),
                                   [](int unit) { return unit == 1; });
  EXPECT_EQ(flops.recomputed.per_token, 2 * kLayer);
  EXPECT_EQ(flops.recomputed.per_token_and_length, 4 * kWidth);
  EXPECT_EQ(flops.Recomputed(10, 4), 10 * (2 * kLayer + 4 * 4 * kWidth));
}

TEST(ModelFlopsTest, RecomputedGateAndUp) {
  const ModelFlops flops = FlopsOf(ModelOf(TwoLayers(false, true)), nullptr,
                                   /*recomputes_mlp=*/true);
  EXPECT_EQ(flops.recomputed.per_token, 2 * 2 * 2 * kInner * kHidden);
  EXPECT_EQ(flops.recomputed.per_token_and_length, 0);
}

constexpr int kAnExpert = 6;

std::vector<ParameterSpec> WithAnExpert() {
  std::vector<ParameterSpec> specs = TwoLayers(false, true);
  specs[kAnExpert].name = "model.layers.0.mlp.experts.3.up_proj.weight";
  return specs;
}

TEST(ModelFlopsTest, ExpertsOfWhichNothingIsKnown) {
  EXPECT_THAT(FlopsOf(ModelOf(WithAnExpert()), nullptr).unknown,
              ::testing::HasSubstr("experts"));
}

// An expert that a quarter of the tokens takes, and a last layer whose
// attention is of the row's last token.
class Shares : public IdleModel {
 public:
  Shares() : IdleModel(ModelOf(WithAnExpert())) {}
  absl::optional<TokenShare> ShareOf(int parameter) const override {
    if (parameter == kAnExpert) return TokenShare{0.25, 0.0};
    if (parameter == kLastOutput) return TokenShare{0.0, 1.0};
    return TokenShare();
  }

 private:
  static constexpr int kLastOutput = 13;
};

TEST(ModelFlopsTest, OnlyTokensThatGoThroughAMatrixCount) {
  const Shares model;
  ASSERT_EQ(model.parameters()[13].name,
            "model.layers.1.self_attn.o_proj.weight");
  const ModelFlops flops = FlopsOf(model, nullptr);
  EXPECT_EQ(flops.unknown, "");
  const double all = 6 * (2 * kLayer + kVocab * kHidden);
  const double expert = 6 * kInner * kHidden, output = 6 * kWidth * kHidden;
  // Its queries' 12 Q for each token of the row are once a row.
  EXPECT_EQ(flops.all.per_token, all - 0.75 * expert - output + 12 * kWidth);
  EXPECT_EQ(flops.all.per_row, output);
  EXPECT_EQ(flops.all.per_token_and_length, 12 * kWidth);
  const double length = 4;
  EXPECT_EQ(flops.Of(2 * length, length),
            2 * (length * (all - 0.75 * expert - output) + output +
                 12 * kWidth * (length * length + length)));
}

}  // namespace
}  // namespace capstan
