// SPDX-License-Identifier: Apache-2.0
//
// Losses, their gradients and advantages against TRL: testdata/grpo holds what
// TRL 1.16.0 with torch 2.11.0 computed in float32 (make_grpo.py).
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugins/grpo/objective/advantages.h"
#include "plugins/grpo/objective/losses.h"

namespace capstan::grpo {
namespace {

using Json = nlohmann::json;

Json Golden(const char* name) {
  return Json::parse(
      std::ifstream(std::string("tests/golden/testdata/grpo/") + name));
}

at::Tensor Matrix(const Json& rows) {
  std::vector<float> values;
  for (const Json& row : rows) {
    for (const Json& value : row) values.push_back(value);
  }
  const auto height = static_cast<int64_t>(rows.size());
  return at::tensor(values, at::kFloat).view({height, -1});
}

Loss LossNamed(const std::string& name) {
  static const std::map<std::string, Loss> losses = {
      {"dapo", DAPO},   {"grpo", GRPO}, {"bnpo", DAPO},   {"dr_grpo", DR_GRPO},
      {"cispo", CISPO}, {"sapo", SAPO}, {"luspo", LUSPO}, {"vespo", VESPO}};
  return losses.at(name);
}

LossOptions OptionsOf(const Json& golden, const Json& wanted) {
  LossOptions options;
  options.loss = LossNamed(wanted["loss"]);
  options.beta = wanted["beta"];
  options.unbiased_kl = wanted["unbiased_kl"];
  options.clip_low = wanted["clip_low"];
  options.clip_high = wanted["clip_high"];
  options.clip_most = wanted["clip_most"];
  options.sequence_ratios = wanted["sequence"];
  options.max_new_tokens = golden["max_new_tokens"];
  return options;
}

AnswerTokens TokensOf(const Json& inputs) {
  AnswerTokens answers;
  answers.logps = Matrix(inputs["logps"]).requires_grad_(true);
  answers.old_logps = Matrix(inputs["old"]);
  answers.reference = Matrix(inputs["reference"]);
  answers.mask = Matrix(inputs["mask"]).gt(0.5);
  answers.advantages =
      at::tensor(inputs["advantages"].get<std::vector<float>>(), at::kFloat);
  answers.entropies = Matrix(inputs["entropies"]);
  return answers;
}

void ExpectTrlsMetrics(const LossOptions& options, const at::Tensor& metrics,
                       const Json& wanted) {
  const std::vector<std::string> names = MetricNames(options);
  for (const auto& [name, value] : wanted.items()) {
    const std::string ours =
        name == "cispo_clip_ratio" ? "clip_ratio/high_mean" : name;
    const auto found = std::find(names.begin(), names.end(), ours);
    ASSERT_NE(found, names.end()) << name;
    const at::Tensor row = metrics[found - names.begin()];
    EXPECT_NEAR((row[0] / row[1]).item<double>(), value.get<double>(), 1e-6)
        << name;
  }
}

TEST(GrpoLossesGoldenTest, LossesAndGradients) {
  const Json golden = Golden("losses.json");
  for (const Json& wanted : golden["cases"]) {
    Json label = wanted;
    label.erase("gradient");
    SCOPED_TRACE(label.dump());
    const LossOptions options = OptionsOf(golden, wanted);
    AnswerTokens answers = TokensOf(golden["inputs"]);
    const int64_t count = LossCount(options, answers.mask.size(0),
                                    answers.mask.sum().item<int64_t>());
    const AnswersLoss loss = LossOf(options, answers);
    const at::Tensor mean = loss.sum / static_cast<double>(count);
    mean.backward();
    EXPECT_NEAR(mean.item<double>(), wanted["value"].get<double>(), 5e-7);
    EXPECT_LT((answers.logps.grad() - Matrix(wanted["gradient"]))
                  .abs()
                  .max()
                  .item<double>(),
              1e-7);
    ExpectTrlsMetrics(options, loss.metrics, wanted["metrics"]);
  }
  EXPECT_GT(golden["cases"].size(), 100u);
}

TEST(GrpoLossesGoldenTest, Advantages) {
  const Json golden = Golden("steps.json");
  const size_t group = golden["num_generations"];
  std::vector<double> rewards;
  for (const Json& prompt : golden["prompts"]) {
    for (const Json& answer : prompt["answers"]) {
      const Json& reward = answer["reward"];
      rewards.push_back(reward.is_null()
                            ? std::numeric_limits<double>::quiet_NaN()
                            : reward.get<double>());
    }
  }
  for (const auto& [name, advantage] :
       {std::pair{"dapo", GROUP_STD}, std::pair{"dr_grpo", GROUP_MEAN},
        std::pair{"once", BATCH_STD}}) {
    size_t begin = 0;
    for (const Json& rollout : golden["runs"][name]["rollouts"]) {
      const std::vector<double> wanted = rollout["advantages"];
      const std::vector<double> got = AdvantagesOf(
          advantage, static_cast<int64_t>(group),
          absl::MakeConstSpan(rewards).subspan(begin, wanted.size()));
      begin += wanted.size();
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_NEAR(got[i], wanted[i], 1e-6) << name << ", answer " << i;
      }
    }
    EXPECT_GE(begin, 40u);
  }
}

}  // namespace
}  // namespace capstan::grpo
