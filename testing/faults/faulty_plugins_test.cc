// SPDX-License-Identifier: Apache-2.0
//
// Plugins with fault points are what they are without.
#include "testing/faults/faulty_plugins.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/dataset.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/prefix_model_for_test.h"
#include "plugins/sdk/token_model.h"

namespace capstan {
namespace {

template <typename Base>
std::unique_ptr<Base> Faulty(PluginCategory category, Base* plugin) {
  return std::unique_ptr<Base>(
      static_cast<Base*>(WithFaultPoints(category, plugin)));
}

// Has every capability of a model.
class RichModel final : public IdleModel,
                        public TokenModel,
                        public RowLosses,
                        public InferenceWeights {
 public:
  RichModel() : IdleModel({{"w", {4, 8}, 0}}, 1) {}

  TokenModel* token_model() override { return this; }
  RowLosses* row_losses() override { return this; }
  InferenceWeights* inference_weights() override { return this; }
  bool skips_other_logits() const override { return true; }
  int64_t vocab_size() const override { return 3; }
  int64_t max_positions() const override { return 5; }
  at::Tensor Logits(const TokenInput&, UnitRunner&) override { return {}; }
  at::Tensor CrossEntropySum(const TokenInput&, const TokenTargets&,
                             UnitRunner&) override {
    return {};
  }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return absl::UnimplementedError("none");
  }
  at::Tensor CrossEntropyRows(const TokenInput& input, const at::Tensor&,
                              UnitRunner&) override {
    return input.tokens;
  }
  bool has_adapter() const override { return true; }
  void SetAdapterEnabled(bool enabled) override { enabled_ = enabled; }
  int64_t PackedBytes(int index) const override { return 17 + index; }
  absl::Status PackedValue(int, int64_t begin, int64_t,
                           uint8_t* out) const override {
    *out = static_cast<uint8_t>(begin);
    return absl::OkStatus();
  }
  void Unpack(int, const uint8_t* bytes, float* out) const override {
    *out = *bytes;
  }
  ParameterRole role(int) const override { return ParameterRole::kHead; }
  std::vector<int64_t> other_end_tokens() const override { return ends_; }
  std::string generation_config() const override { return "{}"; }
  bool takes_host_targets() const override { return true; }
  at::Tensor LastLogits(const TokenInput& input, UnitRunner&) override {
    return input.tokens;
  }
  at::Tensor StoredWeight(int index) const override {
    return at::empty({index});
  }
  absl::Status BindForInference(std::vector<at::Tensor> weights,
                                WeightForm form) override {
    bound_ = form;
    return absl::OkStatus();
  }
  absl::optional<TokenShare> ShareOf(int parameter) const override {
    return TokenShare{0.0, static_cast<double>(parameter)};
  }

  bool enabled_ = true;
  std::vector<int64_t> ends_ = {4, 2};
  WeightForm bound_ = WeightForm::kStored;
};

TEST(FaultyPluginsTest, AModelKeepsItsInterfaces) {
  auto* const plugin = new RichModel;
  const auto model = Faulty<Model>(PluginCategory::kModel, plugin);
  ASSERT_NE(model.get(), plugin);
  EXPECT_EQ(model->PackedBytes(2), 19);
  uint8_t byte = 0;
  EXPECT_TRUE(model->PackedValue(0, 7, 1, &byte).ok());
  float value = 0.0f;
  model->Unpack(0, &byte, &value);
  EXPECT_EQ(value, 7.0f);
  EXPECT_EQ(model->role(0), ParameterRole::kHead);

  RowLosses* const rows = model->token_model()->row_losses();
  ASSERT_NE(rows, nullptr);
  TokenInput input;
  input.tokens = at::empty({2});
  PlainRunner runner;
  EXPECT_TRUE(rows->CrossEntropyRows(input, at::Tensor(), runner)
                  .is_same(input.tokens));
  EXPECT_TRUE(model->has_adapter());
  model->SetAdapterEnabled(false);
  EXPECT_FALSE(plugin->enabled_);

  EXPECT_EQ(EndTokensOf(*model->token_model()), plugin->ends_);
  EXPECT_EQ(model->token_model()->generation_config(), "{}");
  EXPECT_TRUE(TakesHostTargets(*model->token_model()));
  EXPECT_TRUE(
      model->token_model()->LastLogits(input, runner).is_same(input.tokens));
  EXPECT_TRUE(model->token_model()->skips_other_logits());
  ASSERT_NE(model->inference_weights(), nullptr);
  InferenceWeights& inference = *model->inference_weights();
  EXPECT_EQ(inference.StoredWeight(3).numel(), 3);
  EXPECT_TRUE(inference.BindForInference({}, WeightForm::kInt8).ok());
  EXPECT_EQ(plugin->bound_, WeightForm::kInt8);
  EXPECT_EQ(model->ShareOf(6)->of_row, 6.0);
}

TEST(FaultyPluginsTest, AModelGetsNoInterfaceThatItLacks) {
  const auto model =
      Faulty<Model>(PluginCategory::kModel, new PrefixModel(7, 9));
  ASSERT_NE(model->token_model(), nullptr);
  EXPECT_EQ(model->token_model()->vocab_size(), 7);
  EXPECT_EQ(model->token_model()->row_losses(), nullptr);
  EXPECT_FALSE(model->token_model()->skips_other_logits());
  EXPECT_FALSE(TakesHostTargets(*model->token_model()));
  EXPECT_EQ(model->inference_weights(), nullptr);
  EXPECT_FALSE(model->ShareOf(0).has_value());
  const auto idle = Faulty<Model>(PluginCategory::kModel,
                                  new IdleModel({{"w.norm", {4}, 0}}, 1));
  EXPECT_EQ(idle->token_model(), nullptr);
  EXPECT_EQ(idle->role(0), ParameterRole::kNorm);
}

class OneSample : public DatasetReader {
 public:
  int64_t size() const override { return 1; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return std::unique_ptr<DatasetReader>();
  }
};

class Drawing final : public OneSample {
 public:
  bool draws_anew() const override { return true; }
};

TEST(FaultyPluginsTest, AReaderThatDrawsAnewStillDoes) {
  const auto drawing =
      Faulty<DatasetReader>(PluginCategory::kDatasetReader, new Drawing);
  EXPECT_TRUE(drawing->draws_anew());
  const auto other =
      Faulty<DatasetReader>(PluginCategory::kDatasetReader, new OneSample);
  EXPECT_FALSE(other->draws_anew());
}

class Silent : public Objective {
 public:
  absl::Status Check(Model&, const DatasetReader&) const override {
    return absl::OkStatus();
  }
  int64_t CountTargets(const Batch&, const StepInfo&) const override {
    return 0;
  }
  LossSum Compute(Model&, const Batch&, const StepInfo&, UnitRunner&) override {
    return {};
  }
  absl::StatusOr<std::vector<int64_t>> Sample(Model&,
                                              const std::vector<int64_t>&,
                                              const SampleOptions&,
                                              UnitRunner&) override {
    return absl::UnimplementedError("none");
  }
};

class Sampling final : public Silent {
 public:
  void KeepContext(bool keep) override { keeps_ = keep; }
  absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      Model&, absl::Span<const BatchPrompt> prompts, const SampleOptions&,
      const Ended&, UnitRunner&) override {
    return std::vector<std::vector<int64_t>>(prompts.size());
  }

  bool keeps_ = false;
};

TEST(FaultyPluginsTest, AnObjectiveSamplesBatchesIfItDid) {
  auto* const plugin = new Sampling;
  const auto sampling = Faulty<Objective>(PluginCategory::kObjective, plugin);
  PrefixModel model(7, 9);
  PlainRunner runner;
  const auto texts = sampling->SampleBatch(
      model, {BatchPrompt(), BatchPrompt()}, SampleOptions(), nullptr, runner);
  ASSERT_TRUE(texts.ok());
  EXPECT_EQ(texts->size(), 2u);
  sampling->KeepContext(true);
  EXPECT_TRUE(plugin->keeps_);
  const auto silent = Faulty<Objective>(PluginCategory::kObjective, new Silent);
  EXPECT_TRUE(absl::IsUnimplemented(
      silent->SampleBatch(model, {}, SampleOptions(), nullptr, runner)
          .status()));
}

class Held final : public IdleStrategy, public HeldGradients {
 public:
  bool SumsEachMicroStep() const override { return true; }
  HeldGradients* held_gradients() override { return this; }
  void FixGradients() override { state_ += "fixed "; }
  void HoldReductions() override { state_ += "held "; }
  at::Tensor held() override { return gradients_; }
  std::string GradientState() const override { return state_; }
  void SetGradientState(const std::string& state) override { state_ = state; }

  const at::Tensor gradients_ = at::empty({3});

 private:
  std::string state_;
};

// Micro-batches are dealt out by the former; the latter have CUDA graphs.
TEST(FaultyPluginsTest, AStrategyStillSumsEachMicroStepAndHoldsGradients) {
  auto* const plugin = new Held;
  const auto strategy = Faulty<Strategy>(PluginCategory::kStrategy, plugin);
  EXPECT_TRUE(strategy->SumsEachMicroStep());
  ASSERT_NE(strategy->held_gradients(), nullptr);
  HeldGradients& held = *strategy->held_gradients();
  EXPECT_TRUE(held.held().is_same(plugin->gradients_));
  held.FixGradients();
  held.HoldReductions();
  EXPECT_EQ(held.GradientState(), "fixed held ");
  held.SetGradientState("other");
  EXPECT_EQ(plugin->GradientState(), "other");
  const auto idle =
      Faulty<Strategy>(PluginCategory::kStrategy, new IdleStrategy);
  EXPECT_FALSE(idle->SumsEachMicroStep());
  EXPECT_EQ(idle->held_gradients(), nullptr);
}

}  // namespace
}  // namespace capstan
