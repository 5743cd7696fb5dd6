// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/loss_spikes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace capstan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

LossSpikes Config(double z_score, int64_t window) {
  LossSpikes config;
  config.set_z_score(z_score);
  config.set_window(window);
  return config;
}

// A state whose window alternates between 1 and 3: mean 2.
TrainState Alternating(const LossSpikeJudge& judge, int losses) {
  TrainState state;
  for (int i = 0; i < losses; ++i) judge.Take(1 + 2 * (i % 2), false, &state);
  return state;
}

TEST(LossSpikesTest, MeanAndDeviationOfTheWindow) {
  const LossSpikeJudge judge(Config(3, 10));
  TrainState state = Alternating(judge, 10);
  // Of ten numbers at distance 1 from their mean, with Bessel's correction.
  const double deviation = std::sqrt(10.0 / 9.0);
  EXPECT_DOUBLE_EQ(judge.Limit(state), 2 + 3 * deviation);
  EXPECT_DOUBLE_EQ(judge.Score(state, 5), 3 / deviation);
}

TEST(LossSpikesTest, NeedsAQuarterOfTheWindowAndEight) {
  for (const auto& [window, needed] :
       {std::pair<int64_t, int>{8, 8}, {20, 8}, {100, 25}, {0, 25}}) {
    const LossSpikeJudge judge(Config(3, window));
    EXPECT_EQ(judge.Limit(Alternating(judge, needed - 1)), kInfinity);
    EXPECT_LT(judge.Limit(Alternating(judge, needed)), 10) << window;
  }
}

TEST(LossSpikesTest, ASpikeIsNotTakenIn) {
  const LossSpikeJudge judge(Config(3, 20));
  TrainState state = Alternating(judge, 20);
  const double limit = judge.Limit(state);
  EXPECT_FALSE(judge.Take(1000, /*spike=*/true, &state));
  EXPECT_EQ(judge.Limit(state), limit);
  EXPECT_EQ(state.spikes_in_a_row, 1);
  EXPECT_FALSE(judge.Take(2, false, &state));
  EXPECT_EQ(state.spikes_in_a_row, 0);
  EXPECT_EQ(state.recent_losses.size(), 20);
  EXPECT_EQ(state.recent_losses.back(), 2);
}

// Otherwise a run whose loss has risen for good would never train again.
TEST(LossSpikesTest, ManyInARowAreANewLevel) {
  const LossSpikeJudge judge(Config(3, 20));
  TrainState state = Alternating(judge, 20);
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(judge.Take(50, true, &state));
  EXPECT_TRUE(judge.Take(51, true, &state));
  EXPECT_THAT(state.recent_losses, ::testing::ElementsAre(51));
  EXPECT_EQ(state.spikes_in_a_row, 0);
  EXPECT_EQ(judge.Limit(state), kInfinity);
}

TEST(LossSpikesTest, LossesThatAreAllAlike) {
  const LossSpikeJudge judge(Config(3, 8));
  TrainState state;
  for (int i = 0; i < 8; ++i) judge.Take(0.7, false, &state);
  EXPECT_GE(judge.Limit(state), 0.7);
  EXPECT_LT(judge.Limit(state), 0.71);
  for (int i = 0; i < 8; ++i) judge.Take(0, false, &state);
  EXPECT_EQ(judge.Limit(state), 0.0);
  EXPECT_GT(judge.Score(state, 1), 1e6);
}

TEST(LossSpikesTest, AShorterWindowAfterAResume) {
  TrainState state = Alternating(LossSpikeJudge(Config(3, 40)), 40);
  LossSpikeJudge(Config(3, 10)).Take(2, false, &state);
  EXPECT_EQ(state.recent_losses.size(), 10);
}

TEST(LossSpikesTest, OffByDefault) {
  const LossSpikeJudge judge{LossSpikes()};
  TrainState state;
  EXPECT_FALSE(judge.enabled());
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(judge.Take(i, false, &state));
  EXPECT_TRUE(state.recent_losses.empty());
  EXPECT_EQ(judge.Limit(state), kInfinity);
}

TEST(LossSpikesTest, ChecksItsConfig) {
  EXPECT_TRUE(LossSpikeJudge::Check(LossSpikes()).ok());
  EXPECT_TRUE(LossSpikeJudge::Check(Config(6, 8)).ok());
  LossSpikes without;
  without.set_action(LossSpikes::SKIP);
  for (const LossSpikes& bad :
       {Config(-1, 0), Config(kInfinity, 0), Config(NAN, 0), Config(6, 7),
        Config(6, -1), Config(6, int64_t{1} << 40), without}) {
    const absl::Status status = LossSpikeJudge::Check(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad.DebugString();
  }
  // What is accepted is said to be.
  EXPECT_THAT(std::string(LossSpikeJudge::Check(Config(6, -1)).message()),
              testing::HasSubstr("steps, or 0 for the default, is -1"));
}

}  // namespace
}  // namespace capstan
