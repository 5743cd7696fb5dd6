// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/ppo.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "plugins/algorithm_distillation/darkroom.h"

namespace capstan::darkroom {
namespace {

const Darkroom kRooms(Variant::kGoals, {});

TEST(AdvantagesTest, AreDiscountedSumsOfSurprises) {
  constexpr int kSteps = 7, kStreams = 2;
  constexpr double kDiscount = 0.9, kLambda = 0.8;
  const std::vector<int> rewards = {0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0};
  const std::vector<uint8_t> dones = {0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0};
  std::vector<float> values((kSteps + 1) * kStreams);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(1.0 + i));
  }
  std::vector<float> advantages(kSteps * kStreams);
  EstimateAdvantages(kDiscount, kLambda, kSteps, kStreams, rewards.data(),
                     dones.data(), values.data(), advantages.data());
  for (int s = 0; s < kStreams; ++s) {
    for (int t = 0; t < kSteps; ++t) {
      double wanted = 0.0, factor = 1.0;
      for (int later = t; later < kSteps; ++later) {
        const int i = later * kStreams + s;
        const double next = dones[i] ? 0.0 : values[i + kStreams];
        wanted += factor * (rewards[i] + kDiscount * next - values[i]);
        factor *= kDiscount * kLambda;
        if (dones[i]) break;
      }
      EXPECT_NEAR(advantages[t * kStreams + s], wanted, 1e-6) << t << " " << s;
    }
  }
}

// The return of each episode of a history, in order.
std::vector<int> Returns(const History& h, int64_t stream) {
  std::vector<int> returns = {0};
  for (int64_t t = 0; t < h.steps; ++t) {
    returns.back() += h.rewards[t * h.streams + stream];
    if (h.dones[t * h.streams + stream]) returns.push_back(0);
  }
  returns.pop_back();
  return returns;
}

TEST(PpoLearnerTest, RecordsWhatHappened) {
  PpoSettings settings;
  settings.steps_per_update = 30;  // an episode and a half
  settings.epochs = 1;
  const auto learner = std::make_unique<PpoLearner>(settings, kRooms, 41, 6, 1);
  for (int i = 0; i < 3; ++i) learner->Update();
  const History& h = learner->history();
  ASSERT_EQ(h.steps, 90);
  ASSERT_EQ(h.streams, 6);
  ASSERT_EQ(h.compress_markers.size(), 540);
  Play play(kRooms, std::vector<int>(6, 41));
  for (int64_t t = 0; t < 90; ++t) {
    const std::vector<uint8_t> before = play.observations();
    int rewards[6];
    play.Step(&h.actions[t * 6], rewards);
    const bool done = play.done();
    if (done) play.Reset();
    for (int s = 0; s < 6; ++s) {
      const int64_t i = t * 6 + s;
      for (int n = 0; n < 2; ++n) {
        ASSERT_EQ(h.states[2 * i + n], before[2 * s + n]);
        ASSERT_EQ(h.next_states[2 * i + n], play.observation(s)[n]);
      }
      ASSERT_EQ(h.rewards[i], rewards[s]);
      ASSERT_EQ(h.dones[i], done);
      ASSERT_EQ(h.compress_markers[i], t % 30 == 0 ? 1 : t % 30 == 29 ? 2 : 0);
    }
  }
  // In the last update end the episodes that began in the previous one, and the
  // next ones.
  double total = 0;
  for (int s = 0; s < 6; ++s) total += Returns(h, s)[3];
  EXPECT_DOUBLE_EQ(learner->mean_return(), total / 6);
}

TEST(PpoLearnerTest, ActsAtRandomAtFirst) {
  PpoSettings settings;
  settings.epochs = 1;
  const auto learner =
      std::make_unique<PpoLearner>(settings, kRooms, 0, 100, 7);
  learner->Update();
  const History& h = learner->history();
  std::vector<int> counts(kActions);
  for (const uint8_t action : h.actions) ++counts[action];
  for (const int count : counts) EXPECT_NEAR(count, 1600, 250);
  // Streams differ.
  int same = 0;
  for (int64_t t = 0; t < h.steps; ++t) {
    same += h.actions[t * 100] == h.actions[t * 100 + 1];
  }
  EXPECT_LT(same, 40);
}

TEST(PpoLearnerTest, DependsOnTheSeedAlone) {
  PpoSettings settings;
  settings.epochs = 2;
  const auto run = [&](uint64_t seed) {
    const auto learner =
        std::make_unique<PpoLearner>(settings, kRooms, 33, 4, seed);
    for (int i = 0; i < 4; ++i) learner->Update();
    return learner->history().actions;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

// A goal in the farthest corner, with the original's settings.
TEST(PpoLearnerTest, LearnsToReachTheGoal) {
  const auto learner =
      std::make_unique<PpoLearner>(PpoSettings(), kRooms, 80, 100, 42 + 80);
  learner->Update();
  EXPECT_LT(learner->mean_return(), 1.0);
  for (int i = 1; i < 13; ++i) learner->Update();
  EXPECT_EQ(learner->history().steps, 1040);
  EXPECT_GT(learner->mean_return(), 0.85 * kRooms.OptimalReturn(80));
  EXPECT_LE(learner->mean_return(), kRooms.OptimalReturn(80));
}

TEST(PpoLearnerTest, LearnsWhatActionsMean) {
  const Darkroom rooms(Variant::kPermuted, {4, 20});
  PpoSettings settings;
  const auto learner =
      std::make_unique<PpoLearner>(settings, rooms, 119, 50, 1);
  for (int i = 0; i < 13; ++i) learner->Update();
  EXPECT_GT(learner->mean_return(), 0.85 * rooms.OptimalReturn(119));
}

}  // namespace
}  // namespace capstan::darkroom
