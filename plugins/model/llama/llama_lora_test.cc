// SPDX-License-Identifier: Apache-2.0
//
// The parameters that an adapter adds, their initial values, and what is
// refused; tests/golden compares the results with PEFT.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/status.h"
#include "plugins/model/decoder/decoder_lora.h"
#include "plugins/model/llama/llama_testing.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/lib/write_adapter_for_test.h"

namespace capstan::llama {
namespace {

using ::testing::HasSubstr;

LoraSpec Spec(std::vector<std::string> modules) {
  LoraSpec spec;
  spec.rank = 3;
  spec.target_modules = std::move(modules);
  return spec;
}

std::vector<std::string> AdapterNames(const Llama& model) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : model.parameters()) {
    if (spec.trainable) names.push_back(spec.name);
  }
  return names;
}

std::vector<at::Tensor> BindTo(Llama& model, at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    parameters.push_back(at::tensor(Value(model, i, 2), at::kFloat)
                             .view(spec.shape)
                             .to(dtype)
                             .requires_grad_(spec.trainable));
  }
  model.Bind(parameters);
  return parameters;
}

TEST(LlamaLoraTest, AddsParametersAndFreezesTheOthers) {
  const auto model = Make(SmallSizes());
  const size_t base = model->parameters().size();
  ASSERT_TRUE(model->AddLora(Spec({"v_proj", "1.mlp.down_proj"})).ok());
  const auto& specs = model->parameters();
  EXPECT_EQ(AdapterNames(*model),
            (std::vector<std::string>{
                "base_model.model.model.layers.0.self_attn.v_proj"
                ".lora_A.weight",
                "base_model.model.model.layers.0.self_attn.v_proj"
                ".lora_B.weight",
                "base_model.model.model.layers.1.self_attn.v_proj"
                ".lora_A.weight",
                "base_model.model.model.layers.1.self_attn.v_proj"
                ".lora_B.weight",
                "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight",
                "base_model.model.model.layers.1.mlp.down_proj"
                ".lora_B.weight"}));
  ASSERT_EQ(specs.size(), base + 6);
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(specs[i].trainable, i >= base);
    EXPECT_EQ(IsAdapterParameter(specs[i].name), i >= base);
  }
  EXPECT_EQ(specs[base].shape, (std::vector<int64_t>{3, 12}));
  EXPECT_EQ(specs[base + 1].shape, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(specs[base + 1].unit, 1);
  EXPECT_EQ(specs[base + 4].shape, (std::vector<int64_t>{3, 10}));
  EXPECT_EQ(specs[base + 5].unit, 2);
}

TEST(LlamaLoraTest, AllLinearIsAllButTheHead) {
  Config config = SmallSizes();
  config.set_tie_word_embeddings(false);
  const auto model = Make(config);
  ASSERT_TRUE(model->AddLora(Spec({"all-linear"})).ok());
  EXPECT_EQ(AdapterNames(*model).size(), 2 * 7 * 2);
  for (const std::string& name : AdapterNames(*model)) {
    EXPECT_THAT(name, HasSubstr("_proj.lora_"));
  }
}

TEST(LlamaLoraTest, InitialValues) {
  const auto model = Make(SmallSizes());
  const int base = static_cast<int>(model->parameters().size());
  LoraSpec spec = Spec({"down_proj"});
  spec.rank = 50;
  ASSERT_TRUE(model->AddLora(spec).ok());
  const std::vector<float> a = Value(*model, base, 7);
  const double bound = 1.0 / std::sqrt(10.0);
  double squares = 0.0;
  for (float x : a) {
    EXPECT_LE(std::fabs(x), bound);
    squares += x * x;
  }
  EXPECT_NEAR(squares / a.size(), bound * bound / 3, 0.1 * bound * bound / 3);
  EXPECT_NE(a, Value(*model, base, 8));
  EXPECT_NE(a, Value(*model, base + 2, 7));
  std::vector<float> part(9);
  ASSERT_TRUE(model->InitialValue(base, 7, 21, 9, part.data()).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), a.begin() + 21));
  EXPECT_EQ(Value(*model, base + 1, 7), std::vector<float>(50 * 12, 0.0f));
  EXPECT_NE(Value(*model, LayerIndex(*model, 0, "mlp.down_proj")),
            std::vector<float>(12 * 10, 0.0f));
}

TEST(LlamaLoraTest, BadSpecsNameTheirField) {
  const auto refused = [](const std::string& field, auto edit,
                          const std::string& word) {
    LoraSpec spec = Spec({"q_proj"});
    edit(spec);
    const absl::Status status = Make(SmallSizes())->AddLora(spec);
    EXPECT_EQ(FieldOf(status), field) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  };
  refused(
      "rank", [](LoraSpec& s) { s.rank = 0; }, "is 0");
  refused(
      "alpha", [](LoraSpec& s) { s.alpha = -1.0; }, "is -1");
  refused(
      "alpha", [](LoraSpec& s) { s.alpha = NAN; }, "is nan");
  refused(
      "dropout", [](LoraSpec& s) { s.dropout = 1.0; }, "is 1");
  refused(
      "target_modules", [](LoraSpec& s) { s.target_modules.clear(); },
      "is empty");
  const std::string known =
      "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj, or "
      "all-linear";
  for (const char* name : {"query", "proj", "lm_head", "embed_tokens",
                           "2.self_attn.q_proj", "input_layernorm"}) {
    refused(
        "target_modules",
        [&](LoraSpec& s) { s.target_modules.push_back(name); },
        "'" + std::string(name) + "' is none");
  }
  refused(
      "target_modules", [](LoraSpec& s) { s.target_modules = {"x"}; }, known);
  refused(
      "pretrained", [](LoraSpec& s) { s.pretrained = "/nowhere"; },
      "/nowhere/adapter_config.json");
}

TEST(LlamaLoraTest, IsAddedOnceBeforeBind) {
  const auto model = Make(SmallSizes());
  ASSERT_TRUE(model->AddLora(Spec({"q_proj"})).ok());
  EXPECT_FALSE(model->AddLora(Spec({"q_proj"})).ok());
  const auto bound = Make(SmallSizes());
  BindTo(*bound, at::kFloat);
  EXPECT_FALSE(bound->AddLora(Spec({"q_proj"})).ok());
}

class LlamaLoraFolderTest : public ::testing::Test {
 protected:
  LlamaLoraFolderTest() {
    static int made = 0;
    folder_ = ::testing::TempDir() + "adapter" + std::to_string(made++);
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  // The adapter of a model, with each tensor's place as values.
  void Write(const Config& config, const LoraSpec& spec) {
    const auto model = Make(config);
    ASSERT_TRUE(model->AddLora(spec).ok());
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const ParameterSpec& parameter : model->parameters()) {
      if (!parameter.trainable) continue;
      tensors.emplace_back(parameter.name, at::ones(parameter.shape) *
                                               double(tensors.size() + 1));
    }
    const absl::Status written = WriteAdapter(folder_, spec, "base", tensors);
    ASSERT_TRUE(written.ok()) << written;
  }
  LoraSpec Read() {
    auto spec = ReadAdapterConfig(folder_);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return *spec;
  }
  std::string folder_;
};

TEST_F(LlamaLoraFolderTest, GivesTheInitialValues) {
  Write(SmallSizes(), Spec({"k_proj"}));
  const auto model = Make(SmallSizes());
  const int base = static_cast<int>(model->parameters().size());
  const absl::Status added = model->AddLora(Read());
  ASSERT_TRUE(added.ok()) << added;
  EXPECT_EQ(Value(*model, base + 1), std::vector<float>(4 * 3, 2.0f));
  EXPECT_EQ(Value(*model, base + 2), std::vector<float>(3 * 12, 3.0f));
}

TEST_F(LlamaLoraFolderTest, OfAnotherModelIsRefusedByTensor) {
  Write(SmallSizes(), Spec({"k_proj"}));
  const LoraSpec spec = Read();
  const auto refused = [](const Config& config, const LoraSpec& spec) {
    const absl::Status status = Make(config)->AddLora(spec);
    EXPECT_EQ(FieldOf(status), "pretrained") << status;
    return std::string(status.message());
  };
  Config wider = SmallSizes();
  wider.set_hidden_size(24);
  const std::string wide = refused(wider, spec);
  EXPECT_THAT(wide, HasSubstr("layers.0.self_attn.k_proj.lora_A.weight' has "
                              "the shape [3, 12]"));
  EXPECT_THAT(wide, HasSubstr("must be [3, 24]"));
  Config deeper = SmallSizes();
  deeper.set_num_hidden_layers(3);
  EXPECT_THAT(refused(deeper, spec),
              HasSubstr("lacks tensor 'base_model.model.model.layers.2."
                        "self_attn.k_proj.lora_A.weight'"));
  Config shallower = SmallSizes();
  shallower.set_num_hidden_layers(1);
  EXPECT_THAT(refused(shallower, spec),
              HasSubstr("tensor 'base_model.model.model.layers.1.self_attn."
                        "k_proj.lora_A.weight' has no place"));
  LoraSpec other = spec;
  other.alpha = 4.0;
  EXPECT_THAT(refused(SmallSizes(), other),
              HasSubstr("lora_alpha is 8, this run's is 4"));
  other = spec;
  other.rank = 2;
  EXPECT_THAT(refused(SmallSizes(), other), HasSubstr("r is 3"));
}

// Dropout: the same for a sample wherever it is, and none in evaluation.
TEST(LlamaLoraTest, DropoutGoesByTheSample) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Config config = SmallSizes();
    config.set_initializer_range(0.4);
    const auto model = Make(config);
    LoraSpec spec = Spec({"all-linear"});
    spec.dropout = 0.4;
    spec.alpha = 30.0;
    ASSERT_TRUE(model->AddLora(spec).ok());
    std::vector<at::Tensor> parameters = BindTo(*model, dtype);
    for (at::Tensor& p : parameters) {
      if (p.requires_grad()) p.detach().add_(0.05);
    }
    PlainRunner runner;
    const at::AutoGradMode no_gradients(false);
    const auto logits = [&](std::vector<int64_t> tokens,
                            std::vector<int64_t> samples) {
      TokenInput input;
      input.tokens = at::tensor(tokens, at::kLong)
                         .view({static_cast<int64_t>(tokens.size()) / 3, 3});
      if (!samples.empty()) {
        input.sample_positions = at::tensor(samples, at::kLong);
      }
      return model->Logits(input, runner).to(at::kFloat);
    };
    const at::Tensor one = logits({1, 2, 3}, {5});
    const at::Tensor two = logits({4, 5, 6, 1, 2, 3}, {9, 5});
    const double size = one.abs().max().item<double>();
    const auto differ = [&](const at::Tensor& a, const at::Tensor& b) {
      return (a - b).abs().max().item<double>() / size;
    };
    EXPECT_LT(differ(two[1], one[0]), dtype == at::kFloat ? 1e-5 : 0.03);
    EXPECT_GT(differ(logits({1, 2, 3}, {6}), one), 0.1);
    EXPECT_GT(differ(logits({1, 2, 3}, {}), one), 0.1);
    EXPECT_TRUE(logits({1, 2, 3}, {}).equal(logits({1, 2, 3}, {})));
  }
}

}  // namespace
}  // namespace capstan::llama
