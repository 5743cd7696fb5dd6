// SPDX-License-Identifier: Apache-2.0
//
// Reward models against TRL: testdata/reward/golden.json holds what TRL 1.16.0
// with torch 2.15.0 and transformers 5.24.0 computed in float32 on CPU
// (tests/peers/make_reward_golden.py).
#include "plugins/objective/reward/reward.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/model/decoder/decoder.h"
#include "plugins/sdk/token_model.h"
#include "tests/golden/pair_golden.h"

namespace capstan {
namespace {

const Json& Wanted() {
  static const Json golden =
      ReadJson("tests/golden/testdata/reward/golden.json");
  return golden;
}

// The Llama with the head of scores that the peer began with.
std::unique_ptr<Trained> Scorer() {
  decoder::Config config;
  config.set_pretrained(kBase);
  config.set_score_head(true);
  auto model = decoder::Decoder::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  const std::vector<ParameterSpec> specs = (*model)->parameters();
  const auto head = std::find_if(
      specs.begin(), specs.end(),
      [](const ParameterSpec& spec) { return spec.name == "score.weight"; });
  EXPECT_NE(head, specs.end());
  auto run = std::make_unique<Trained>(*std::move(model), 1e-3);
  const at::NoGradGuard no_grad;
  run->trained(head - specs.begin())
      .copy_(at::tensor(Wanted()["score"].get<std::vector<double>>())
                 .unsqueeze(0));
  return run;
}

TEST(RewardGoldenTest, ScoresAreTransformers) {
  const std::unique_ptr<Trained> run = Scorer();
  TextScores* const scores = run->model().token_model()->text_scores();
  ASSERT_NE(scores, nullptr);
  PlainRunner runner;
  const Batch batch = BatchOf(0, 20);
  TokenInput input;
  input.tokens = batch.at(kInputIds);
  const at::Tensor mine =
      scores->Scores(input, batch.at(kTokenCounts) - 1, runner);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(mine[i].item<double>(), Wanted()["scores"][i].get<double>(),
                1e-5)
        << i;
  }
}

void ExpectTrlsSteps(const char* name, const reward::Config& config) {
  auto objective = reward::Reward::Create(config);
  ASSERT_TRUE(objective.ok()) << objective.status();
  const std::unique_ptr<Trained> run = Scorer();
  ASSERT_TRUE((*objective)->Check(run->model(), Pairs()).ok());
  const Json& wanted = Wanted()[name];
  ASSERT_EQ(wanted["losses"].size(), 10u);
  for (int64_t step = 0; step < 10; ++step) {
    const LossSum loss =
        run->Step(**objective, BatchOf(step * kPairsAStep, kPairsAStep));
    // The first is of the same weights; then updates add up differences.
    EXPECT_NEAR(loss.sum.item<double>() / kPairsAStep,
                wanted["losses"][step].get<double>(), step == 0 ? 1e-5 : 1e-4)
        << name << ", step " << step + 1;
    for (const auto& [row, metric] :
         {std::pair{2, "accuracy"}, std::pair{3, "margin"}}) {
      EXPECT_NEAR((loss.metrics[row][0] / loss.metrics[row][1]).item<double>(),
                  wanted["metrics"][metric][step].get<double>(), 1e-4)
          << name << ", " << metric << ", step " << step + 1;
    }
  }
}

TEST(RewardGoldenTest, TenSteps) { ExpectTrlsSteps("reward", {}); }

TEST(RewardGoldenTest, TenStepsWithScoresDrawnToAMeanOf0) {
  reward::Config config;
  config.set_center_rewards_coefficient(0.1);
  ExpectTrlsSteps("centred", config);
}

}  // namespace
}  // namespace capstan
