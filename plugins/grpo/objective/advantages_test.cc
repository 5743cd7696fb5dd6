// SPDX-License-Identifier: Apache-2.0
//
// The formulas by hand; tests/golden/grpo_losses_test.cc compares with TRL.
#include "plugins/grpo/objective/advantages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace capstan::grpo {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

void ExpectAdvantages(Advantage advantage, const std::vector<double>& rewards,
                      const std::vector<double>& wanted) {
  const std::vector<double> got = AdvantagesOf(advantage, 3, rewards);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], wanted[i], 1e-12)
        << Advantage_Name(advantage) << ", " << i;
  }
}

// Groups with the means 2 and 5, and the standard deviations 1 and 3.
const std::vector<double> kRewards = {1.0, 2.0, 3.0, 2.0, 8.0, 5.0};

TEST(AdvantagesTest, TheFormulas) {
  ExpectAdvantages(GROUP_MEAN, kRewards, {-1, 0, 1, -3, 3, 0});
  const double a = 1.0 / 1.0001, b = 3.0 / 3.0001;
  ExpectAdvantages(GROUP_STD, kRewards, {-a, 0, a, -b, b, 0});
  // Less (2 + 3) / 2, and so on.
  ExpectAdvantages(LEAVE_ONE_OUT, kRewards, {-1.5, 0, 1.5, -4.5, 4.5, 0});
  // The mean of all is 3.5, the squares' sum 33.5.
  const double all = std::sqrt(33.5 / 5.0) + 1e-4;
  ExpectAdvantages(BATCH_STD, kRewards,
                   {-1 / all, 0, 1 / all, -3 / all, 3 / all, 0});
  // That of {-1, 0, 1, -3, 3, 0}.
  const double centred = std::sqrt(20.0 / 5.0) + 1e-4;
  ExpectAdvantages(
      REINFORCE_PP, kRewards,
      {-1 / centred, 0, 1 / centred, -3 / centred, 3 / centred, 0});
}

TEST(AdvantagesTest, AnswersWithoutARewardCountNowhere) {
  const std::vector<double> rewards = {1, kNone, 3, kNone, kNone, 7};
  const double a = 1.0 / (std::sqrt(2.0) + 1e-4);
  ExpectAdvantages(GROUP_MEAN, rewards, {-1, 0, 1, 0, 0, 0});
  ExpectAdvantages(GROUP_STD, rewards, {-a, 0, a, 0, 0, 0});
  ExpectAdvantages(LEAVE_ONE_OUT, rewards, {-2, 0, 2, 0, 0, 0});
  // Of 1, 3 and 7.
  const double all = std::sqrt(56.0 / 3.0 / 2.0) + 1e-4;
  ExpectAdvantages(BATCH_STD, rewards, {-1 / all, 0, 1 / all, 0, 0, 0});
  ExpectAdvantages(REINFORCE_PP, rewards,
                   {-1 / 1.0001, 0, 1 / 1.0001, 0, 0, 0});
}

TEST(AdvantagesTest, EqualRewardsTeachNothing) {
  for (int i = Advantage_MIN; i <= Advantage_MAX; ++i) {
    const auto advantage = static_cast<Advantage>(i);
    EXPECT_EQ(AdvantagesOf(advantage, 3, {0.1, 0.1, 0.1, 0.7, 0.7, 0.7}),
              std::vector<double>(6, 0.0))
        << Advantage_Name(advantage);
  }
}

TEST(AdvantagesTest, StandardDeviations) {
  EXPECT_DOUBLE_EQ(StandardDeviation({2.0, 8.0, 5.0}), 3.0);
  EXPECT_DOUBLE_EQ(StandardDeviation({2.0, kNone, 8.0, 5.0}), 3.0);
  EXPECT_EQ(StandardDeviation({kNone, 8.0}), 0.0);
  // Neither a sixth of these nor their sum is exact.
  EXPECT_EQ(StandardDeviation(std::vector<double>(6, 0.1)), 0.0);
}

}  // namespace
}  // namespace capstan::grpo
