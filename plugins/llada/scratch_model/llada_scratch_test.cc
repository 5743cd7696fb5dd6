// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "plugins/llada/scratch_model/llada_scratch.pb.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/plugin_for_test.h"

namespace capstan::llada_scratch {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kVocab = 23;

Config SmallSizes() {
  Config config;
  config.set_vocab_size(kVocab);
  config.set_hidden_size(12);
  config.set_num_hidden_layers(2);
  config.set_num_attention_heads(3);
  config.set_max_sequence_length(80);
  config.set_initializer_range(0.3);
  return config;
}

std::unique_ptr<Model> Make(const Config& config) {
  auto model = MakePlugin<Model>(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// Random values, biases and norms too.
std::vector<at::Tensor> BindTo(Model& model) {
  at::manual_seed(1);
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& spec : model.parameters()) {
    parameters.push_back((at::randn(spec.shape) * 0.3).requires_grad_(true));
  }
  model.Bind(parameters);
  return parameters;
}

std::vector<at::Tensor> TakeGradients(std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (at::Tensor& p : parameters) {
    gradients.push_back(p.grad());
    p.mutable_grad().reset();
  }
  return gradients;
}

double Difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// A second implementation of the model, with tensors by name.
class Reference {
 public:
  Reference(const Model& model, const std::vector<at::Tensor>& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      by_name_[model.parameters()[i].name] = parameters[i];
    }
  }

  // Of one text [T]: [T, V].
  at::Tensor Logits(const at::Tensor& tokens) const {
    const int64_t length = tokens.size(0), heads = 3, head_dim = 4;
    at::Tensor x =
        Norm("embedding_norm",
             at::embedding(W("token_embedding.weight"), tokens) +
                 W("position_embedding.weight").narrow(0, 0, length));
    for (const std::string layer : {"layers.0.", "layers.1."}) {
      const at::Tensor n = Norm(layer + "attention_norm", x);
      const auto project = [&](const char* name) {
        return at::linear(n, W(layer + "attention." + name + ".weight"))
            .view({length, heads, head_dim})
            .transpose(0, 1);
      };
      const at::Tensor scores =
          project("q_proj").matmul(project("k_proj").transpose(1, 2)) /
          std::sqrt(static_cast<double>(head_dim));
      const at::Tensor mixed = at::softmax(scores, -1)
                                   .matmul(project("v_proj"))
                                   .transpose(0, 1)
                                   .reshape({length, heads * head_dim});
      x = x + at::linear(mixed, W(layer + "attention.o_proj.weight"));
      const at::Tensor m = Norm(layer + "mlp_norm", x);
      x = x + Linear(layer + "mlp.out_proj",
                     at::gelu(Linear(layer + "mlp.in_proj", m)));
    }
    return Linear("head", Norm("norm", x));
  }

 private:
  const at::Tensor& W(const std::string& name) const {
    return by_name_.at(name);
  }
  at::Tensor Norm(const std::string& name, const at::Tensor& x) const {
    return at::layer_norm(x, {12}, W(name + ".weight"), W(name + ".bias"),
                          1e-5);
  }
  at::Tensor Linear(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, W(name + ".weight"), W(name + ".bias"));
  }
  std::map<std::string, at::Tensor> by_name_;
};

TEST(LladaScratchTest, TheOriginalsSizesAreTheDefaults) {
  Config config;
  config.set_vocab_size(69);
  const auto model = Make(config);
  EXPECT_EQ(model->units().size(), 26);
  EXPECT_EQ(model->token_model()->max_positions(), 4096);
  EXPECT_EQ(model->token_model()->mask_token(), 68);
  EXPECT_FALSE(model->token_model()->causal());
  int64_t total = 0;
  for (const ParameterSpec& spec : model->parameters()) total += spec.numel();
  const int64_t d = 768, norm = 2 * d;
  EXPECT_EQ(total, (69 + 4096) * d + norm +
                       24 * (4 * d * d + 8 * d * d + 5 * d + 2 * norm) + norm +
                       69 * (d + 1));
}

TEST(LladaScratchTest, LogitsLossAndGradientsAreTheReferences) {
  const auto model = Make(SmallSizes());
  std::vector<at::Tensor> parameters = BindTo(*model);
  const Reference reference(*model, parameters);
  PlainRunner runner;
  const at::Tensor tokens = at::randint(kVocab, {2, 17}, at::kLong);
  const at::Tensor targets = at::randint(-9, kVocab, {2, 17}, at::kLong);
  const at::Tensor weights = at::rand({2, 17});
  const at::Tensor logits = model->token_model()->Logits({tokens}, runner);
  at::Tensor wanted = at::zeros({}, at::kFloat);
  for (int64_t row = 0; row < 2; ++row) {
    const at::Tensor alone = reference.Logits(tokens[row]);
    EXPECT_LT(Difference(logits[row], alone), 1e-5);
    const at::Tensor picked =
        at::log_softmax(alone, -1)
            .gather(1, targets[row].clamp_min(0).unsqueeze(1))
            .squeeze(1);
    wanted = wanted - (picked * weights[row] * (targets[row] >= 0)).sum();
  }
  const at::Tensor loss = model->token_model()->CrossEntropySum(
      {tokens}, {targets, weights}, runner);
  EXPECT_NEAR(loss.item<double>() / wanted.item<double>(), 1.0, 1e-6);
  wanted.backward();
  const std::vector<at::Tensor> gradients = TakeGradients(parameters);
  loss.backward();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LT((parameters[i].grad() - gradients[i]).norm().item<double>(),
              1e-5 * gradients[i].norm().item<double>() + 1e-6)
        << model->parameters()[i].name;
  }
}

TEST(LladaScratchTest, RowsAreTheSumOfTheirDocuments) {
  const auto model = Make(SmallSizes());
  std::vector<at::Tensor> parameters = BindTo(*model);
  PlainRunner runner;
  std::vector<at::Tensor> tokens, positions;
  double alone = 0.0;
  std::vector<at::Tensor> sums;
  for (const int64_t length : {1, 5, 67, 7, 3, 77}) {
    tokens.push_back(at::randint(kVocab, {1, length}, at::kLong));
    positions.push_back(at::arange(length).to(at::kLong));
    const at::Tensor loss = model->token_model()->CrossEntropySum(
        {tokens.back()}, {tokens.back(), at::Tensor()}, runner);
    loss.backward();
    alone += loss.item<double>();
    const std::vector<at::Tensor> more = TakeGradients(parameters);
    for (size_t i = 0; i < more.size(); ++i) {
      if (tokens.size() == 1) sums.push_back(at::zeros_like(more[i]));
      sums[i] += more[i];
    }
  }
  TokenInput input;
  input.tokens = at::cat(tokens, 1).view({2, 80});
  input.positions = at::cat(positions).view({2, 80});
  const at::Tensor loss = model->token_model()->CrossEntropySum(
      input, {input.tokens, at::Tensor()}, runner);
  EXPECT_NEAR(loss.item<double>() / alone, 1.0, 1e-6);
  loss.backward();
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_LT((parameters[i].grad() - sums[i]).norm().item<double>(),
              1e-5 * sums[i].norm().item<double>() + 1e-6)
        << model->parameters()[i].name;
  }
}

// The same for a sample wherever it is in the batch and however it is
// truncated, and none in evaluation.
TEST(LladaScratchTest, DropoutGoesByTheSample) {
  Config config = SmallSizes();
  config.set_dropout(0.4);
  const auto model = Make(config);
  BindTo(*model);
  PlainRunner runner;
  const at::AutoGradMode no_gradients(false);
  // Documents of one token each, so that none sees the others.
  const auto logits = [&](std::vector<int64_t> tokens, int64_t rows,
                          std::vector<int64_t> samples) {
    TokenInput input;
    input.tokens = at::tensor(tokens, at::kLong).view({rows, -1});
    input.positions = at::zeros_like(input.tokens);
    if (!samples.empty()) {
      input.sample_positions = at::tensor(samples, at::kLong);
    }
    return model->token_model()->Logits(input, runner);
  };
  const at::Tensor one = logits({1, 2, 3}, 1, {5});
  EXPECT_LT(Difference(logits({4, 5, 6, 1, 2, 3}, 2, {9, 5})[1], one[0]), 1e-5);
  EXPECT_LT(Difference(logits({1, 2}, 1, {5})[0], one[0].narrow(0, 0, 2)),
            1e-5);
  EXPECT_GT(Difference(logits({1, 2, 3}, 1, {6}), one), 0.01);
  const at::Tensor plain = logits({1, 2, 3}, 1, {});
  EXPECT_GT(Difference(plain, one), 0.01);
  EXPECT_TRUE(plain.equal(logits({1, 2, 3}, 1, {})));
}

TEST(LladaScratchTest, HasItsLimits) {
  const auto model = Make(SmallSizes());
  BindTo(*model);
  EXPECT_FALSE(model->token_model()->NewCache(1, 81).ok());
  EXPECT_FALSE(model->token_model()->NewCache(0, 4).ok());
  PlainRunner runner;
  const at::Tensor tokens = at::randint(kVocab, {1, 81}, at::kLong);
  EXPECT_THROW(model->token_model()->Logits({tokens}, runner), c10::Error);
}

TEST(LladaScratchTest, BadSizesNameTheirField) {
  const auto expect = [](const std::string& field, auto edit) {
    Config config = SmallSizes();
    edit(config);
    const absl::Status status = MakePlugin<Model>(config).status();
    EXPECT_EQ(FieldOf(status), field) << status;
  };
  expect("vocab_size", [](Config& c) { c.clear_vocab_size(); });
  expect("hidden_size", [](Config& c) { c.set_hidden_size(13); });
  expect("num_hidden_layers", [](Config& c) { c.set_num_hidden_layers(-1); });
  expect("dropout", [](Config& c) { c.set_dropout(1.0); });
  expect("layer_norm_eps", [](Config& c) { c.set_layer_norm_eps(-1.0); });
  expect("mask_token_id", [](Config& c) { c.set_mask_token_id(126336); });
  expect("eos_token_id", [](Config& c) { c.set_eos_token_id(kVocab); });
  expect("pretrained", [](Config& c) { c.set_pretrained("somewhere"); });
}

TEST(LladaScratchTest, FoldersGoBothWays) {
  Config config = SmallSizes();
  config.set_mask_token_id(4);
  config.set_eos_token_id(2);
  config.set_dropout(0.25);
  const auto source = Make(config);
  const std::string folder = ::testing::TempDir() + "/llada_scratch";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(source->SaveConfig(folder, at::kFloat).ok());
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors");
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::vector<std::vector<float>> values;
  for (const ParameterSpec& spec : source->parameters()) {
    (*writer)->Declare(spec.name, at::kFloat, spec.shape);
  }
  for (size_t i = 0; i < source->parameters().size(); ++i) {
    values.emplace_back(source->parameters()[i].numel());
    ASSERT_TRUE(
        source->InitialValue(i, 5, 0, values[i].size(), values[i].data()).ok());
    ASSERT_TRUE((*writer)->Append(values[i].data(), 4 * values[i].size()).ok());
  }
  ASSERT_TRUE((*writer)->Close().ok());

  Config from;
  from.set_pretrained(folder);
  const auto model = Make(from);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->token_model()->mask_token(), 4);
  EXPECT_EQ(model->token_model()->eos_token(), 2);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(model->parameters()[i].name, source->parameters()[i].name);
    std::vector<float> got(values[i].size());
    ASSERT_TRUE(model->InitialValue(i, 0, 0, got.size(), got.data()).ok());
    EXPECT_EQ(got, values[i]) << model->parameters()[i].name;
  }
  Json json = Json::parse(std::ifstream(folder + "/config.json"));
  EXPECT_EQ(json["model_type"], "llada_scratch");
  EXPECT_EQ(json["dropout"], 0.25);
  json["mask_token_id"] = 126336;
  std::ofstream(folder + "/config.json") << json;
  const absl::Status status = MakePlugin<Model>(from).status();
  EXPECT_EQ(FieldOf(status), "pretrained");
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("/config.json: mask_token_id must be below vocab_size"));
}

}  // namespace
}  // namespace capstan::llada_scratch
