// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/objective.h"
#include "tests/conformance/plugin_under_test.h"

namespace {

// Loads the library as the trainer does.
std::unique_ptr<capstan::Objective> NewObjective(const std::string& fields) {
  auto plugin = capstan::conformance::LoadedPluginUnderTest::Load(
      {"myvendor/myplugin/libmyvendor_myplugin.so",
       "[plugin/myvendor.myplugin.Config] { " + fields + " }"},
      capstan::PluginCategory::kObjective);
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  if (!plugin.ok()) return nullptr;
  auto objective = plugin->Create<capstan::Objective>();
  EXPECT_TRUE(objective.ok()) << objective.status();
  return objective.ok() ? *std::move(objective) : nullptr;
}

// Keeps what it is asked for; its loss is the sum of the targets.
class FakeModel final : public capstan::Model, public capstan::TokenModel {
 public:
  const std::vector<capstan::ParameterSpec>& parameters() const override {
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
  capstan::TokenModel* token_model() override { return this; }

  int64_t vocab_size() const override { return 8; }
  int64_t max_positions() const override { return 6; }
  // The token behind t is t + 1.
  at::Tensor Logits(const capstan::TokenInput& input,
                    capstan::UnitRunner&) override {
    at::Tensor logits =
        at::zeros({input.tokens.size(0), input.tokens.size(1), vocab_size()});
    return logits.scatter_(
        2, input.tokens.add(1).remainder(vocab_size()).unsqueeze(2), 1.0);
  }
  at::Tensor CrossEntropySum(const capstan::TokenInput&,
                             const capstan::TokenTargets& targets,
                             capstan::UnitRunner&) override {
    targets_ = targets.tokens;
    return targets.tokens.clamp_min(0).sum().to(at::kFloat);
  }
  absl::StatusOr<std::unique_ptr<capstan::KvCache>> NewCache(
      int64_t, int64_t) const override {
    return absl::UnimplementedError("not needed here");
  }

  at::Tensor targets_;

 private:
  const std::vector<capstan::ParameterSpec> specs_;
  const std::vector<std::string> units_;
};

TEST(MyPluginTest, TheContextIsNotLearned) {
  const auto objective = NewObjective("context: 3");
  ASSERT_NE(objective, nullptr);
  FakeModel model;
  capstan::PlainRunner runner;
  const capstan::Batch batch = {
      {"input_ids", at::arange(10, at::kLong).view({2, 5})}};
  const capstan::LossSum loss =
      objective->Compute(model, batch, capstan::StepInfo(), runner);
  EXPECT_EQ(loss.count, 4);
  EXPECT_EQ(objective->CountTargets(batch, capstan::StepInfo()), 4);
  EXPECT_EQ(loss.tokens, 10);
  // 3 + 4 and 8 + 9.
  EXPECT_EQ(loss.sum.item<float>(), 24.0f);
  EXPECT_EQ(model.targets_[0][2].item<int64_t>(), 3);
  EXPECT_LT(model.targets_[0][1].item<int64_t>(), 0);
  EXPECT_LT(model.targets_[1][4].item<int64_t>(), 0);
}

TEST(MyPluginTest, WithoutAContextAllButTheFirstAreLearned) {
  const auto objective = NewObjective("");
  ASSERT_NE(objective, nullptr);
  const capstan::Batch batch = {
      {"input_ids", at::arange(10, at::kLong).view({2, 5})}};
  EXPECT_EQ(objective->CountTargets(batch, capstan::StepInfo()), 8);
}

TEST(MyPluginTest, SamplesTheMostProbableToken) {
  const auto objective = NewObjective("");
  ASSERT_NE(objective, nullptr);
  FakeModel model;
  capstan::PlainRunner runner;
  capstan::SampleOptions options;
  options.max_new_tokens = 3;
  const auto text = objective->Sample(model, {2, 3}, options, runner);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, (std::vector<int64_t>{2, 3, 4, 5, 6}));
  EXPECT_FALSE(objective->Sample(model, {}, options, runner).ok());
}

}  // namespace
