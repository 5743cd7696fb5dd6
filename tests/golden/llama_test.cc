// SPDX-License-Identifier: Apache-2.0
//
// The Llama against transformers' LlamaForCausalLM: testdata/ holds what
// torch 2.11.0 with transformers 5.23.0 computed in float32 on CPU.
#include "plugins/model/llama/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "plugins/objective/causal_lm/causal_lm.h"
#include "tests/golden/adamw_steps.h"
#include "tests/golden/gradient_norm.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

class LlamaGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::string("tests/golden/testdata/") + GetParam();
    golden_ = Json::parse(std::ifstream(folder_ + "/golden.json"));
    auto tensors = SafetensorsReader::Open(folder_ + "/golden.safetensors");
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    const TensorEntry& ids = (*tensors)->tensors().at("input_ids");
    ids_ = at::empty(ids.shape, at::kLong);
    std::memcpy(ids_.mutable_data_ptr(), ids.data, ids.bytes);
    const TensorEntry& logits = (*tensors)->tensors().at("logits");
    logits_ = at::empty(logits.shape, at::kFloat);
    ASSERT_TRUE((*tensors)
                    ->ReadFloats("logits", 0, logits_.numel(),
                                 logits_.mutable_data_ptr<float>())
                    .ok());

    llama::Config config;
    config.set_pretrained(folder_);
    auto model = llama::Llama::Create(config);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    Bind(at::kFloat);
    SetObjective(causal_lm::Config());
  }

  void SetObjective(const causal_lm::Config& config) {
    auto objective = causal_lm::CausalLm::Create(config);
    ASSERT_TRUE(objective.ok()) << objective.status();
    objective_ = *std::move(objective);
  }

  void Bind(at::ScalarType dtype) {
    parameters_.clear();
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      const ParameterSpec& spec = model_->parameters()[i];
      at::Tensor value = at::empty(spec.shape, at::kFloat);
      ASSERT_TRUE(model_
                      ->InitialValue(i, 0, 0, value.numel(),
                                     value.mutable_data_ptr<float>())
                      .ok());
      parameters_.push_back(value.to(dtype).requires_grad_(true));
    }
    model_->Bind(parameters_);
  }

  at::Tensor Logits(const at::Tensor& ids, KvCache* cache = nullptr) {
    at::AutoGradMode no_gradients(false);
    return model_->Logits({ids, cache}, runner_);
  }

  // Mean loss; its gradients replace those of the parameters.
  double Backward() {
    for (at::Tensor& p : parameters_) p.mutable_grad().reset();
    StepInfo info;
    info.training = true;
    const LossSum loss =
        objective_->Compute(*model_, {{"input_ids", ids_}}, info, runner_);
    EXPECT_EQ(loss.count, ids_.numel() - ids_.size(0));
    (loss.sum / static_cast<double>(loss.count)).backward();
    return loss.sum.item<double>() / loss.count;
  }

  // Steps of AdamW, as golden_["adamw"] says, with these losses and gradients.
  void ExpectSteps(const Json& losses, const Json& grad_norms);

  std::string folder_;
  Json golden_;
  at::Tensor ids_;
  at::Tensor logits_;
  std::unique_ptr<llama::Llama> model_;
  std::unique_ptr<causal_lm::CausalLm> objective_;
  std::vector<at::Tensor> parameters_;
  PlainRunner runner_;
};

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST_P(LlamaGoldenTest, Logits) {
  EXPECT_LT(MaxDifference(Logits(ids_), logits_), 1e-5);
}

TEST_P(LlamaGoldenTest, LogitsThroughTheCacheInPieces) {
  auto cache = model_->NewCache(ids_.size(0), ids_.size(1));
  ASSERT_TRUE(cache.ok()) << cache.status();
  const int64_t pieces[] = {7, 1, 1, 10, 5};
  int64_t begin = 0;
  for (int64_t length : pieces) {
    const at::Tensor got =
        Logits(ids_.narrow(1, begin, length).contiguous(), cache->get());
    EXPECT_LT(MaxDifference(got, logits_.narrow(1, begin, length)), 1e-5);
    begin += length;
    EXPECT_EQ((*cache)->length(), begin);
  }
  EXPECT_EQ(begin, ids_.size(1));
}

TEST_P(LlamaGoldenTest, GradientNormOfEachTensor) {
  Backward();
  const Json& wanted = golden_["first_step_grad_norm"];
  ASSERT_EQ(wanted.size(), parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = model_->parameters()[i].name;
    ASSERT_TRUE(wanted.contains(name)) << name;
    const double norm = parameters_[i].grad().norm().item<double>();
    EXPECT_NEAR(norm / wanted[name].get<double>(), 1.0, 1e-5) << name;
  }
}

void LlamaGoldenTest::ExpectSteps(const Json& losses, const Json& grad_norms) {
  const Json& wanted = golden_["adamw"];
  AdamWSteps adamw(wanted, parameters_);
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(Backward(), losses[step].get<double>(), 1e-5) << step;
    const double norm = GradientNorm(parameters_);
    EXPECT_NEAR(norm / grad_norms[step].get<double>(), 1.0, 1e-5) << step;
    adamw.Step(model_->parameters(), norm, wanted["clip"]);
  }
}

TEST_P(LlamaGoldenTest, FiveAdamWSteps) {
  const Json& wanted = golden_["adamw"];
  ASSERT_EQ(wanted["losses"].size(), 5);
  ExpectSteps(wanted["losses"], wanted["grad_norms"]);
}

// transformers 5.24.0's LabelSmoother.
TEST_P(LlamaGoldenTest, StepsWithLabelSmoothing) {
  const Json& wanted = golden_["label_smoothing"];
  ASSERT_EQ(wanted["losses"].size(), 3);
  causal_lm::Config config;
  config.set_label_smoothing(wanted["smoothing"]);
  SetObjective(config);
  ExpectSteps(wanted["losses"], wanted["grad_norms"]);
}

TEST_P(LlamaGoldenTest, GreedyText) {
  const std::vector<int64_t> wanted = golden_["greedy"];
  const int64_t given = 8, fresh = static_cast<int64_t>(wanted.size()) - given;
  const std::vector<int64_t> prompt(wanted.begin(), wanted.begin() + given);
  SampleOptions options;
  options.greedy = true;
  options.max_new_tokens = fresh;
  options.stop_at_eos = false;
  const auto text = objective_->Sample(*model_, prompt, options, runner_);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, wanted);

  // And without a cache.
  std::vector<int64_t> again = prompt;
  while (again.size() < wanted.size()) {
    const int64_t length = static_cast<int64_t>(again.size());
    const at::Tensor ids = at::from_blob(again.data(), {1, length}, at::kLong);
    again.push_back(Logits(ids).select(1, length - 1).argmax().item<int64_t>());
  }
  EXPECT_EQ(again, wanted);
}

// bfloat16 has 8 bits: a sane forward is off by about a hundredth of the
// logits' size, and its loss by less.
TEST_P(LlamaGoldenTest, HalfTypesAreClose) {
  const double loss = Backward();
  const double norm = GradientNorm(parameters_);
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    Bind(dtype);
    const at::Tensor logits = Logits(ids_);
    EXPECT_EQ(logits.scalar_type(), dtype);
    const double size = logits_.abs().max().item<double>();
    EXPECT_LT(MaxDifference(logits, logits_), 0.04 * size);
    EXPECT_NEAR(Backward(), loss, 0.03);
    EXPECT_EQ(parameters_[0].grad().scalar_type(), dtype);
    EXPECT_NEAR(GradientNorm(parameters_) / norm, 1.0, 0.03);
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, LlamaGoldenTest,
                         testing::Values("llama", "llama_untied_sharded"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace capstan
