// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/preferences.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace capstan::grpo {
namespace {

TEST(PreferencesTest, Roles) {
  const std::vector<double> rewards = {1, 3, 2, 3, 5, 5, 5, 5, 0, 0, 1, 0};
  EXPECT_EQ(RolesOf(ONLINE_DPO, 4, rewards),
            (std::vector<double>{-1, 1, 0, 0, 0, 0, 0, 0, -1, 0, 1, 0}));
  EXPECT_EQ(RolesOf(REJECTION, 4, rewards),
            (std::vector<double>{0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0}));
}

// Two answers to each of two prompts; the second prompt's are equally good.
AnswerTokens Answers() {
  AnswerTokens answers;
  answers.logps =
      at::tensor({-1.0f, -2.0f, -0.5f, -9.0f, -1.0f, -1.0f, -1.0f, -1.0f})
          .view({4, 2})
          .requires_grad_(true);
  answers.reference =
      at::tensor({-1.5f, -1.0f, -1.0f, 0.0f, -2.0f, 0.0f, -2.0f, 0.0f})
          .view({4, 2});
  answers.mask = at::tensor({1, 1, 1, 0, 1, 1, 1, 1}).view({4, 2}).gt(0);
  answers.advantages = at::tensor({-1.0f, 1.0f, 0.0f, 0.0f});
  return answers;
}

TEST(PreferencesTest, OnlineDpo) {
  const AnswerTokens answers = Answers();
  const PreferenceLoss loss = PreferenceLossOf(ONLINE_DPO, 0.5, 2, answers);
  // Better: -0.5 - -1; worse: -3 - -2.5.
  const double margin = 0.5 * (0.5 - -0.5);
  const double probability = 1.0 / (1.0 + std::exp(-margin));
  EXPECT_NEAR(loss.sum.item<double>(), -std::log(probability), 1e-6);
  loss.sum.backward();
  const double slope = 0.5 * (1.0 - probability);
  const at::Tensor want =
      at::tensor({slope, slope, -slope, 0.0, 0.0, 0.0, 0.0, 0.0}).view({4, 2});
  EXPECT_LT((answers.logps.grad() - want).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(loss.metrics[0][0].item<double>(), 1.0);
  EXPECT_EQ(loss.metrics[0][1].item<double>(), 1.0);
  EXPECT_NEAR(loss.metrics[1][0].item<double>(), margin, 1e-6);
  EXPECT_EQ(
      PreferenceCount(ONLINE_DPO, answers.advantages, answers.mask.sum(1)), 1);
}

TEST(PreferencesTest, Rejection) {
  const AnswerTokens answers = Answers();
  const PreferenceLoss loss = PreferenceLossOf(REJECTION, 0.0, 2, answers);
  EXPECT_EQ(loss.sum.item<double>(), 0.5);
  loss.sum.backward();
  EXPECT_EQ(answers.logps.grad()[1][0].item<double>(), -1.0);
  EXPECT_EQ(answers.logps.grad().abs().sum().item<double>(), 1.0);
  EXPECT_EQ(PreferenceCount(REJECTION, answers.advantages, answers.mask.sum(1)),
            1);
}

}  // namespace
}  // namespace capstan::grpo
