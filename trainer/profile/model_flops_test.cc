// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/model_flops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace capstan {
namespace {

constexpr int64_t kHidden = 8;
constexpr int64_t kVocab = 100;
constexpr int64_t kInner = 20;
constexpr int64_t kWidth = 6;  // of attention's heads
constexpr int64_t kLayer =
    kWidth * kHidden * 2 + 2 * 2 * kHidden + 3 * kInner * kHidden;

class TwoLayers : public Model {
 public:
  TwoLayers(bool tied, bool trainable) {
    specs_.push_back({"model.embed_tokens.weight", {kVocab, kHidden}, 0});
    specs_.back().read_in_backward = false;
    if (tied) specs_.back().other_units = {3};
    for (int layer = 0; layer < 2; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".";
      const int unit = 1 + layer;
      specs_.push_back({name + "input_layernorm.weight", {kHidden}, unit});
      const std::pair<const char*, std::vector<int64_t>> matrices[] = {
          {"self_attn.q_proj.weight", {kWidth, kHidden}},
          {"self_attn.k_proj.weight", {2, kHidden}},
          {"self_attn.v_proj.weight", {2, kHidden}},
          {"self_attn.o_proj.weight", {kHidden, kWidth}},
          {"mlp.gate_proj.weight", {kInner, kHidden}},
          {"mlp.up_proj.weight", {kInner, kHidden}},
          {"mlp.down_proj.weight", {kHidden, kInner}}};
      for (const auto& [matrix, shape] : matrices) {
        specs_.push_back({name + matrix, shape, unit});
      }
    }
    if (!tied) specs_.push_back({"lm_head.weight", {kVocab, kHidden}, 3});
    for (ParameterSpec& spec : specs_) spec.trainable = trainable;
  }
  // A trainable pair of matrices of rank 1 beside layer 1's q_proj.
  void AddAdapter() {
    specs_.push_back({"q_proj.lora_A.weight", {1, kHidden}, 2});
    specs_.push_back({"q_proj.lora_B.weight", {kWidth, 1}, 2});
  }
  void Rename(int index, const std::string& name) { specs_[index].name = name; }

  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int, uint64_t, int64_t, int64_t,
                            float*) const override {
    return absl::OkStatus();
  }
  void Bind(std::vector<at::Tensor>) override {}
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }

 private:
  const std::vector<std::string> units_ = {"embed", "layers.0", "layers.1",
                                           "head"};
  std::vector<ParameterSpec> specs_;
};

TEST(ModelFlopsTest, SixForEachElementOfAMatrix) {
  const double matrices = 2 * kLayer + kVocab * kHidden;
  for (const bool tied : {false, true}) {
    const ModelFlops flops = FlopsOf(TwoLayers(tied, true), nullptr);
    EXPECT_EQ(flops.unknown, "");
    EXPECT_EQ(flops.per_token, 6 * matrices) << tied;
    // 12 L H Q.
    EXPECT_EQ(flops.per_token_and_length, 12 * 2 * kWidth);
    EXPECT_EQ(flops.Of(10, 4), 10 * (6 * matrices + 4 * 12 * 2 * kWidth));
    EXPECT_EQ(flops.Recomputed(10, 4), 0);
  }
}

TEST(ModelFlopsTest, FrozenMatricesHaveNoGradient) {
  TwoLayers model(/*tied=*/false, /*trainable=*/false);
  model.AddAdapter();
  const ModelFlops flops = FlopsOf(model, nullptr);
  const double adapter = kHidden + kWidth;
  // Nothing goes back through layer 0.
  EXPECT_EQ(flops.per_token,
            2 * kLayer + 4 * kLayer + 6 * adapter + 4 * kVocab * kHidden);
  EXPECT_EQ(flops.per_token_and_length, (4 + 12) * kWidth);
}

TEST(ModelFlopsTest, RecomputedForward) {
  const ModelFlops flops =
      FlopsOf(TwoLayers(false, true), [](int unit) { return unit == 1; });
  EXPECT_EQ(flops.recomputed_per_token, 2 * kLayer);
  EXPECT_EQ(flops.recomputed_per_token_and_length, 4 * kWidth);
  EXPECT_EQ(flops.Recomputed(10, 4), 10 * (2 * kLayer + 4 * 4 * kWidth));
}

TEST(ModelFlopsTest, ExpertsAreUnknown) {
  TwoLayers model(false, true);
  model.Rename(6, "model.layers.0.mlp.experts.3.up_proj.weight");
  EXPECT_THAT(FlopsOf(model, nullptr).unknown, ::testing::HasSubstr("experts"));
}

}  // namespace
}  // namespace capstan
