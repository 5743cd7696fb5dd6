// SPDX-License-Identifier: Apache-2.0
//
// A LoRA adapter on the Llama against PEFT, and one of DoRA:
// testdata/llama_lora and llama_dora hold what torch 2.11.0 with peft 0.21.2
// computed in float32 on CPU.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "plugins/model/llama/llama.h"
#include "plugins/objective/causal_lm/causal_lm.h"
#include "plugins/sdk/lib/lora.h"
#include "tests/golden/adamw_steps.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

constexpr char kBase[] = "tests/golden/testdata/llama";
constexpr char kAdapter[] = "tests/golden/testdata/llama_lora";
constexpr char kDora[] = "tests/golden/testdata/llama_dora";
constexpr char kMerged[] = "tests/golden/testdata/llama_lora_merged";

class LlamaLoraGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto spec = ReadAdapterConfig(GetParam());
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *spec;
    llama::Config config;
    config.set_pretrained(kBase);
    auto model = llama::Llama::Create(config);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    const absl::Status added = model_->AddLora(spec_);
    ASSERT_TRUE(added.ok()) << added;
    parameters_ = Bind(*model_);

    auto tensors = SafetensorsReader::Open(std::string(GetParam()) +
                                           "/golden.safetensors");
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    const TensorEntry& ids = (*tensors)->tensors().at("input_ids");
    ids_ = at::empty(ids.shape, at::kLong);
    std::memcpy(ids_.mutable_data_ptr(), ids.data, ids.bytes);
    logits_ = Read(**tensors, "logits");
  }

  static at::Tensor Read(const SafetensorsReader& reader,
                         const std::string& name) {
    at::Tensor value = at::empty(reader.tensors().at(name).shape, at::kFloat);
    EXPECT_TRUE(
        reader
            .ReadFloats(name, 0, value.numel(), value.mutable_data_ptr<float>())
            .ok());
    return value;
  }

  static std::vector<at::Tensor> Bind(llama::Llama& model) {
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model.parameters().size(); ++i) {
      const ParameterSpec& spec = model.parameters()[i];
      at::Tensor value = at::empty(spec.shape, at::kFloat);
      EXPECT_TRUE(model
                      .InitialValue(i, 0, 0, value.numel(),
                                    value.mutable_data_ptr<float>())
                      .ok());
      parameters.push_back(value.requires_grad_(spec.trainable));
    }
    model.Bind(parameters);
    return parameters;
  }

  at::Tensor Logits(llama::Llama& model, const at::Tensor& ids,
                    KvCache* cache = nullptr) {
    at::AutoGradMode no_gradients(false);
    TokenInput input;
    input.tokens = ids;
    input.cache = cache;
    return model.Logits(input, runner_);
  }

  static double Difference(const at::Tensor& a, const at::Tensor& b) {
    return (a - b).abs().max().item<double>();
  }

  LoraSpec spec_;
  std::unique_ptr<llama::Llama> model_;
  std::vector<at::Tensor> parameters_;
  at::Tensor ids_;
  at::Tensor logits_;
  PlainRunner runner_;
};

class LlamaLoraAloneTest : public LlamaLoraGoldenTest {};

TEST_P(LlamaLoraAloneTest, ReadsTheConfig) {
  EXPECT_EQ(spec_.rank, 4);
  EXPECT_EQ(spec_.alpha, 8.0);
  EXPECT_EQ(spec_.dropout, 0.0);
  EXPECT_FALSE(spec_.rslora);
  EXPECT_EQ(spec_.target_modules,
            (std::vector<std::string>{"q_proj", "v_proj", "down_proj"}));
}

TEST_P(LlamaLoraGoldenTest, Logits) {
  EXPECT_LT(Difference(Logits(*model_, ids_), logits_), 1e-5);
}

TEST_P(LlamaLoraGoldenTest, LogitsThroughTheCache) {
  auto cache = model_->NewCache(ids_.size(0), ids_.size(1));
  ASSERT_TRUE(cache.ok()) << cache.status();
  int64_t begin = 0;
  for (int64_t length : {9, 1, 14}) {
    const at::Tensor got = Logits(
        *model_, ids_.narrow(1, begin, length).contiguous(), cache->get());
    EXPECT_LT(Difference(got, logits_.narrow(1, begin, length)), 1e-5);
    begin += length;
  }
}

TEST_P(LlamaLoraGoldenTest, AdamWStepsOfTheAdapterAlone) {
  const Json wanted = Json::parse(
      std::ifstream(std::string(GetParam()) + "/golden.json"))["adamw"];
  auto objective = causal_lm::CausalLm::Create(causal_lm::Config());
  ASSERT_TRUE(objective.ok()) << objective.status();

  std::vector<at::Tensor> trained, frozen, before;
  for (const at::Tensor& p : parameters_) {
    (p.requires_grad() ? trained : frozen).push_back(p);
    if (!p.requires_grad()) before.push_back(p.clone());
  }
  AdamWSteps adamw(wanted, trained);
  const size_t steps = wanted["losses"].size();
  ASSERT_GE(steps, 3u);
  for (size_t step = 0; step < steps; ++step) {
    const LossSum loss =
        (*objective)->Compute(*model_, {{"input_ids", ids_}}, {}, runner_);
    (loss.sum / static_cast<double>(loss.count)).backward();
    EXPECT_NEAR(loss.sum.item<double>() / loss.count,
                wanted["losses"][step].get<double>(), 1e-5)
        << step;
    adamw.Step(model_->parameters());
    for (at::Tensor& p : trained) p.mutable_grad().reset();
  }
  for (size_t i = 0; i < frozen.size(); ++i) {
    EXPECT_FALSE(frozen[i].grad().defined());
    EXPECT_TRUE(frozen[i].equal(before[i]));
  }
}

// W + scale B A is what PEFT's merge_and_unload saved, and gives the logits.
TEST_P(LlamaLoraAloneTest, MergedWeights) {
  llama::Config config;
  config.set_pretrained(kMerged);
  auto merged = llama::Llama::Create(config);
  ASSERT_TRUE(merged.ok()) << merged.status();
  const std::vector<at::Tensor> wanted = Bind(**merged);
  EXPECT_LT(Difference(Logits(**merged, ids_), logits_), 1e-5);

  std::map<std::string, at::Tensor> by_name;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    by_name[model_->parameters()[i].name] = parameters_[i].detach();
  }
  int changed = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string& name = (*merged)->parameters()[i].name;
    const std::string module = name.substr(0, name.rfind(".weight"));
    at::Tensor value = by_name.at(name).clone();
    const auto a = by_name.find(AdapterParameterName(module, /*is_b=*/false));
    if (a != by_name.end()) {
      const at::Tensor& b = by_name.at(AdapterParameterName(module, true));
      value += spec_.scale() * b.mm(a->second);
      ++changed;
    }
    EXPECT_LT(Difference(value, wanted[i].detach()), 1e-6) << name;
  }
  EXPECT_EQ(changed, 3 * model_->units().size() - 6);
}

INSTANTIATE_TEST_SUITE_P(All, LlamaLoraGoldenTest,
                         testing::Values(kAdapter, kDora),
                         [](const auto& info) {
                           return info.param == kDora ? "dora" : "lora";
                         });
INSTANTIATE_TEST_SUITE_P(All, LlamaLoraAloneTest, testing::Values(kAdapter));

}  // namespace
}  // namespace capstan
