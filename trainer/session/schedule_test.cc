// SPDX-License-Identifier: Apache-2.0
//
// testdata/schedules.json: multipliers by step from transformers and torch.
#include "trainer/session/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace capstan {
namespace {

std::vector<double> Golden(const std::string& name) {
  std::ifstream file("trainer/session/testdata/schedules.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  return all.at(name).get<std::vector<double>>();
}

Schedule Make(Schedule::Kind kind, int64_t warmup, int64_t total) {
  Schedule schedule;
  schedule.set_kind(kind);
  schedule.set_warmup_steps(warmup);
  schedule.set_total_steps(total);
  return schedule;
}

void ExpectGolden(const Schedule& schedule, const std::string& name) {
  const std::vector<double> golden = Golden(name);
  ASSERT_GT(golden.size(), 20);
  for (size_t step = 0; step < golden.size(); ++step) {
    EXPECT_NEAR(LearningRateMultiplier(schedule, step, 1000), golden[step],
                1e-12)
        << name << " at step " << step;
  }
}

TEST(ScheduleTest, Linear) {
  ExpectGolden(Make(Schedule::LINEAR, 10, 50), "linear warmup=10 total=50");
}

TEST(ScheduleTest, Cosine) {
  ExpectGolden(Make(Schedule::COSINE, 10, 50), "cosine warmup=10 total=50");
}

TEST(ScheduleTest, Constant) {
  ExpectGolden(Make(Schedule::CONSTANT, 10, 0), "constant warmup=10");
}

TEST(ScheduleTest, OneCycle) {
  Schedule schedule;
  schedule.set_kind(Schedule::ONE_CYCLE);
  schedule.set_total_steps(50);
  schedule.set_warmup_ratio(0.1);
  ExpectGolden(schedule, "onecycle cosine total=50 pct=0.1");
  // 0.3 by default, and held at its end.
  schedule.set_warmup_ratio(0.3);
  Schedule by_default = schedule;
  by_default.clear_warmup();
  for (int64_t step : {0, 7, 14, 15, 30, 49}) {
    EXPECT_EQ(LearningRateMultiplier(by_default, step, 1000),
              LearningRateMultiplier(schedule, step, 1000));
  }
  for (int64_t step : {50, 51, 99}) {
    EXPECT_NEAR(LearningRateMultiplier(schedule, step, 1000), 4e-6, 1e-15);
  }
  schedule.set_warmup_steps(20);
  EXPECT_NEAR(LearningRateMultiplier(schedule, 0, 1000), 0.04, 1e-12);
  EXPECT_NEAR(LearningRateMultiplier(schedule, 10, 1000), 0.52, 1e-12);
  EXPECT_EQ(LearningRateMultiplier(schedule, 20, 1000), 1.0);
  EXPECT_NEAR(LearningRateMultiplier(schedule, 35, 1000), 0.500002, 1e-12);
  schedule.set_warmup_steps(0);
  EXPECT_EQ(LearningRateMultiplier(schedule, 0, 1000), 1.0);
}

// Values of transformers' get_wsd_schedule(num_warmup_steps=10,
// num_stable_steps=25, num_decay_steps=15).
TEST(ScheduleTest, WarmUpStableDecay) {
  Schedule wsd = Make(Schedule::WSD, 10, 50);
  wsd.set_decay_steps(15);
  const auto at = [&wsd](int64_t step) {
    return LearningRateMultiplier(wsd, step, 1000);
  };
  EXPECT_EQ(at(0), 0.0);
  EXPECT_NEAR(at(7), 0.7, 1e-12);
  for (int64_t step : {10, 20, 34, 35}) EXPECT_EQ(at(step), 1.0);
  EXPECT_NEAR(at(36), 14.0 / 15.0, 1e-12);
  EXPECT_NEAR(at(49), 1.0 / 15.0, 1e-12);
  for (int64_t step : {50, 51, 99}) EXPECT_EQ(at(step), 0.0);
  wsd.set_min_ratio(0.1);
  EXPECT_NEAR(at(36), 0.1 + 0.9 * 14.0 / 15.0, 1e-12);
  EXPECT_NEAR(at(50), 0.1, 1e-12);
  wsd.set_decay_shape(Schedule::SQRT_DECAY);
  EXPECT_NEAR(at(36), 0.1 + 0.9 * (1.0 - std::sqrt(1.0 / 15.0)), 1e-12);
  EXPECT_NEAR(at(50), 0.1, 1e-12);
  EXPECT_EQ(at(35), 1.0);
}

TEST(ScheduleTest, TheDecaysLengthIsAPartOfAllSteps) {
  Schedule wsd = Make(Schedule::WSD, 0, 0);
  EXPECT_EQ(DecaySteps(wsd, 101), 21);  // 0.2, rounded up
  EXPECT_EQ(LearningRateMultiplier(wsd, 80, 101), 1.0);
  EXPECT_NEAR(LearningRateMultiplier(wsd, 81, 101), 20.0 / 21.0, 1e-12);
  wsd.set_decay_ratio(0.5);
  wsd.set_warmup_ratio(0.5);
  EXPECT_TRUE(CheckSchedule(wsd, 101).ok());
  EXPECT_EQ(DecaySteps(wsd, 101), 50);  // not into the warm-up
  EXPECT_EQ(LearningRateMultiplier(wsd, 51, 101), 1.0);
  wsd.set_decay_ratio(0.0);
  EXPECT_EQ(LearningRateMultiplier(wsd, 100, 101), 1.0);
  wsd.set_total_steps(60);
  wsd.set_decay_steps(6);
  EXPECT_NEAR(LearningRateMultiplier(wsd, 57, 101), 0.5, 1e-12);
}

TEST(ScheduleTest, NoScheduleIsAConstantOne) {
  for (int64_t step : {0, 1, 100, 100000}) {
    EXPECT_EQ(LearningRateMultiplier(Schedule(), step, 10), 1.0);
  }
}

// A scheduler stepped once per rank would reach 0 early and, as a cosine, rise
// again. Ours is a function of the step, and is held after its end.
TEST(ScheduleTest, StaysAtItsEnd) {
  Schedule cosine = Make(Schedule::COSINE, 0, 50);
  for (int64_t step : {50, 51, 100, 200}) {
    EXPECT_NEAR(LearningRateMultiplier(cosine, step, 1000), 0.0, 1e-12);
  }
  cosine.set_min_ratio(0.1);
  EXPECT_NEAR(LearningRateMultiplier(cosine, 0, 1000), 1.0, 1e-12);
  EXPECT_NEAR(LearningRateMultiplier(cosine, 60, 1000), 0.1, 1e-12);
  cosine.set_total_steps(0);
  EXPECT_NEAR(LearningRateMultiplier(cosine, 20, 20), 0.1, 1e-12);
}

TEST(ScheduleTest, WarmupRatioIsAPartOfAllSteps) {
  Schedule linear = Make(Schedule::LINEAR, 0, 50);
  linear.set_warmup_ratio(0.2);
  ExpectGolden(linear, "linear warmup=10 total=50");
  linear.set_total_steps(0);
  linear.set_warmup_ratio(0.101);  // rounded up
  EXPECT_EQ(WarmupSteps(linear, 100), 11);
  EXPECT_EQ(LearningRateMultiplier(linear, 11, 100), 1.0);
  EXPECT_EQ(WarmupSteps(Make(Schedule::LINEAR, 7, 50), 100), 7);
}

TEST(ScheduleTest, EpochsAreRoundedUpToWholeSteps) {
  Train train;
  train.set_max_steps(9);
  EXPECT_EQ(StepsOfRun(train, 1000, 8), 9);
  train.clear_max_steps();
  train.set_max_epochs(3);
  EXPECT_EQ(StepsOfRun(train, 1000, 8), 375);
  EXPECT_EQ(StepsOfRun(train, 1001, 8), 376);
  train.set_max_epochs(0.5);
  EXPECT_EQ(StepsOfRun(train, 10, 8), 1);
}

TEST(ScheduleTest, BadValuesNameTheirField) {
  Schedule warmup = Make(Schedule::LINEAR, 3, 50);
  warmup.set_warmup_ratio(1.5);
  EXPECT_EQ(FieldOf(CheckSchedule(warmup, 10)), "warmup_ratio");
  EXPECT_EQ(FieldOf(CheckSchedule(Make(Schedule::LINEAR, 60, 50), 10)),
            "warmup_steps");
  Schedule ratio;
  ratio.set_min_ratio(2);
  EXPECT_EQ(FieldOf(CheckSchedule(ratio, 10)), "min_ratio");
  EXPECT_TRUE(CheckSchedule(Schedule(), 10).ok());

  Schedule wsd = Make(Schedule::WSD, 10, 50);
  wsd.set_decay_steps(41);
  EXPECT_EQ(FieldOf(CheckSchedule(wsd, 10)), "decay_steps");
  wsd.set_decay_steps(40);
  EXPECT_TRUE(CheckSchedule(wsd, 10).ok());
  wsd.set_decay_ratio(-0.1);
  EXPECT_EQ(FieldOf(CheckSchedule(wsd, 10)), "decay_ratio");
  wsd.set_decay_ratio(0.9);
  EXPECT_EQ(FieldOf(CheckSchedule(wsd, 10)), "decay_ratio");
  wsd.set_warmup_steps(45);
  wsd.clear_decay();  // 0.2
  EXPECT_EQ(FieldOf(CheckSchedule(wsd, 10)), "decay_ratio");
}

TEST(ScheduleTest, FieldsOfAnotherKindAreErrors) {
  for (const auto kind : {Schedule::CONSTANT, Schedule::LINEAR,
                          Schedule::COSINE, Schedule::ONE_CYCLE}) {
    Schedule schedule = Make(kind, 0, 50);
    EXPECT_TRUE(CheckSchedule(schedule, 10).ok());
    schedule.set_decay_shape(Schedule::SQRT_DECAY);
    EXPECT_EQ(FieldOf(CheckSchedule(schedule, 10)), "decay_shape");
    schedule.set_decay_ratio(0.1);
    EXPECT_EQ(FieldOf(CheckSchedule(schedule, 10)), "decay_ratio");
    schedule.set_decay_steps(0);
    EXPECT_EQ(FieldOf(CheckSchedule(schedule, 10)), "decay_steps");
  }
  Schedule once = Make(Schedule::ONE_CYCLE, 0, 50);
  once.set_min_ratio(0.1);
  EXPECT_EQ(FieldOf(CheckSchedule(once, 10)), "min_ratio");
  once.set_kind(Schedule::CONSTANT);
  EXPECT_EQ(FieldOf(CheckSchedule(once, 10)), "min_ratio");
}

}  // namespace
}  // namespace capstan
