// SPDX-License-Identifier: Apache-2.0
//
// Sizes and bookkeeping; tests/golden compares the results with transformers.
#include "plugins/model/llama/llama.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/status.h"
#include "plugins/model/llama/llama_testing.h"

namespace capstan::llama {
namespace {

using ::testing::HasSubstr;

std::vector<at::Tensor> BindTo(Model& model) {
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const std::vector<float> value = Value(model, i);
    parameters.push_back(at::tensor(value, at::kFloat)
                             .view(model.parameters()[i].shape)
                             .requires_grad_(true));
  }
  model.Bind(parameters);
  return parameters;
}

TEST(LlamaTest, ParametersAreHuggingFacesInOrderOfUse) {
  const auto model = Make(SmallSizes());
  const auto& specs = model->parameters();
  ASSERT_EQ(specs.size(), 2 + 2 * 9);
  EXPECT_EQ(specs[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(specs[0].shape, (std::vector<int64_t>{7, 12}));
  EXPECT_EQ(specs[LayerIndex(*model, 1, "self_attn.k_proj")].name,
            "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(specs[LayerIndex(*model, 1, "self_attn.k_proj")].shape,
            (std::vector<int64_t>{4, 12}));
  EXPECT_EQ(specs[LayerIndex(*model, 1, "self_attn.k_proj")].unit, 2);
  EXPECT_EQ(specs[LayerIndex(*model, 0, "mlp.down_proj")].name,
            "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(specs[LayerIndex(*model, 0, "mlp.down_proj")].shape,
            (std::vector<int64_t>{12, 10}));
  EXPECT_EQ(specs.back().name, "model.norm.weight");
  EXPECT_EQ(specs.back().unit, 3);
  EXPECT_EQ(model->units(), (std::vector<std::string>{"embed", "layers.0",
                                                      "layers.1", "head"}));
  Config untied = SmallSizes();
  untied.set_tie_word_embeddings(false);
  EXPECT_EQ(Make(untied)->parameters().back().name, "lm_head.weight");
}

TEST(LlamaTest, SmolLm2HasItsPublishedNumberOfParameters) {
  Config config;
  config.set_hidden_size(576);
  config.set_intermediate_size(1536);
  config.set_num_hidden_layers(30);
  config.set_num_attention_heads(9);
  config.set_num_key_value_heads(3);
  config.set_vocab_size(49152);
  int64_t total = 0;
  const auto model = Make(config);
  for (const ParameterSpec& spec : model->parameters()) {
    total += spec.numel();
  }
  EXPECT_EQ(total, 134515008);
}

TEST(LlamaTest, InitialValuesDependOnSeedAndNameAlone) {
  Config config = SmallSizes();
  config.set_initializer_range(0.5);
  const auto model = Make(config);
  const int query = LayerIndex(*model, 0, "self_attn.q_proj");
  const std::vector<float> whole = Value(*model, query, 3);
  EXPECT_NE(whole, Value(*model, query, 4));
  EXPECT_NE(whole, Value(*model, LayerIndex(*model, 1, "self_attn.q_proj"), 3));
  std::vector<float> part(20);
  ASSERT_TRUE(model->InitialValue(query, 3, 11, 20, part.data()).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 11));
  double squares = 0.0;
  for (float x : whole) squares += x * x;
  EXPECT_NEAR(std::sqrt(squares / whole.size()), 0.5, 0.1);
  EXPECT_EQ(Value(*model, LayerIndex(*model, 1, "post_attention_layernorm")),
            std::vector<float>(12, 1.0f));
}

TEST(LlamaTest, BadSizesNameTheirField) {
  const auto expect = [](const std::string& field, auto edit) {
    Config config = SmallSizes();
    edit(config);
    const absl::Status status = Llama::Create(config).status();
    EXPECT_EQ(FieldOf(status), field) << status;
  };
  expect("hidden_size", [](Config& c) { c.clear_hidden_size(); });
  expect("hidden_size", [](Config& c) { c.set_hidden_size(13); });
  expect("vocab_size", [](Config& c) { c.set_vocab_size(-1); });
  expect("num_attention_heads", [](Config& c) {
    c.clear_num_attention_heads();
    c.clear_num_key_value_heads();
  });
  expect("num_key_value_heads",
         [](Config& c) { c.set_num_key_value_heads(2); });
  expect("head_dim", [](Config& c) { c.set_head_dim(5); });
  expect("head_dim", [](Config& c) { c.set_hidden_size(15); });
  expect("rms_norm_eps", [](Config& c) { c.set_rms_norm_eps(-1.0); });
  expect("eos_token_id", [](Config& c) { c.set_eos_token_id(7); });
  expect("num_hidden_layers",
         [](Config& c) { c.set_num_hidden_layers(int64_t{1} << 40); });
  expect("pretrained", [](Config& c) { c.set_pretrained("somewhere"); });
}

TEST(LlamaTest, RunsEachUnitOnceInOrder) {
  class Recorder final : public UnitRunner {
   public:
    at::Tensor Run(int unit, const at::Tensor& input,
                   const Body& body) override {
      units.push_back(unit);
      return body(input);
    }
    std::vector<int> units;
  };
  const auto model = Make(SmallSizes());
  BindTo(*model);
  Recorder runner;
  const at::Tensor ids = at::tensor({1, 2, 3}, at::kLong).view({1, 3});
  EXPECT_EQ(model->Logits({ids}, runner).sizes(), at::IntArrayRef({1, 3, 7}));
  EXPECT_EQ(runner.units, (std::vector<int>{0, 1, 2, 3}));
  runner.units.clear();
  EXPECT_TRUE(model->CrossEntropySum({ids}, {ids}, runner).requires_grad());
  EXPECT_EQ(runner.units, (std::vector<int>{0, 1, 2, 3}));
}

TEST(LlamaTest, FrozenEmbeddingLeavesTheRestTrainable) {
  const auto model = Make(SmallSizes());
  std::vector<at::Tensor> parameters = BindTo(*model);
  PlainRunner runner;
  const at::Tensor ids = at::tensor({1, 2, 3}, at::kLong).view({1, 3});
  model->CrossEntropySum({ids}, {ids}, runner).backward();
  const at::Tensor wanted =
      parameters[LayerIndex(*model, 0, "mlp.gate_proj")].grad().clone();
  for (at::Tensor& p : parameters) p.mutable_grad().reset();
  parameters[0].requires_grad_(false);
  model->CrossEntropySum({ids}, {ids}, runner).backward();
  EXPECT_TRUE(
      parameters[LayerIndex(*model, 0, "mlp.gate_proj")].grad().equal(wanted));
  EXPECT_FALSE(parameters[0].grad().defined());
}

TEST(LlamaTest, LogitsAndLossGiveTheSameGradients) {
  const auto model = Make(SmallSizes());
  std::vector<at::Tensor> parameters = BindTo(*model);
  PlainRunner runner;
  const at::Tensor ids = at::tensor({1, 2, 3, 2}, at::kLong).view({2, 2});
  model->CrossEntropySum({ids}, {ids}, runner).backward();
  std::vector<at::Tensor> wanted;
  for (at::Tensor& p : parameters) {
    wanted.push_back(p.grad());
    p.mutable_grad().reset();
  }
  const at::Tensor logs = model->Logits({ids}, runner).log_softmax(-1);
  logs.gather(2, ids.unsqueeze(2)).sum().neg().backward();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(parameters[i].grad().allclose(wanted[i], 1e-4, 1e-6))
        << model->parameters()[i].name;
  }
}

TEST(LlamaTest, CacheHasItsLimits) {
  const auto model = Make(SmallSizes());
  BindTo(*model);
  EXPECT_FALSE(model->NewCache(1, 2049).ok());
  EXPECT_FALSE(model->NewCache(0, 5).ok());
  const auto cache = model->NewCache(1, 2048);
  ASSERT_TRUE(cache.ok());
  EXPECT_EQ((*cache)->length(), 0);
}

class ForeignCache final : public KvCache {
 public:
  int64_t length() const override { return 0; }
};

// The message of what Logits throws.
std::string RefusalOf(Model& model, const TokenInput& input) {
  PlainRunner runner;
  try {
    model.token_model()->Logits(input, runner);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(LlamaTest, AForeignCacheIsRefused) {
  const at::AutoGradMode no_gradients(false);
  const auto model = Make(SmallSizes()), other = Make(SmallSizes());
  BindTo(*model);
  BindTo(*other);
  const auto of_other = other->NewCache(1, 8), own = model->NewCache(1, 8);
  ASSERT_TRUE(of_other.ok() && own.ok());
  ForeignCache foreign;
  TokenInput input;
  input.tokens = at::tensor({1, 2}, at::kLong).view({1, 2});
  for (KvCache* cache : {static_cast<KvCache*>(&foreign), of_other->get()}) {
    input.cache = cache;
    EXPECT_THAT(RefusalOf(*model, input), HasSubstr("another model's"));
  }
  input.cache = own->get();
  EXPECT_EQ(RefusalOf(*model, input), "");
  EXPECT_EQ((*own)->length(), 2);
}

// An objective's mistake, which ends its step and not the process.
TEST(LlamaTest, WrongInputIsRefused) {
  const auto model = Make(SmallSizes());
  BindTo(*model);
  const auto cache = model->NewCache(1, 3);
  ASSERT_TRUE(cache.ok());
  TokenInput input;
  input.tokens = at::tensor({1, 2}, at::kLong).view({1, 2});
  input.positions = at::tensor({0, 1, 2}, at::kLong).view({1, 3});
  EXPECT_THAT(RefusalOf(*model, input), HasSubstr("are of one shape"));
  input.positions = at::Tensor();
  input.cache = cache->get();
  EXPECT_THAT(RefusalOf(*model, input), HasSubstr("without gradients"));
  const at::AutoGradMode no_gradients(false);
  EXPECT_EQ(RefusalOf(*model, input), "");
  EXPECT_THAT(RefusalOf(*model, input), HasSubstr("cache is too small"));
}

}  // namespace
}  // namespace capstan::llama
