// SPDX-License-Identifier: Apache-2.0
//
// testdata/schedules.json: multipliers by step from transformers and torch.
#include "trainer/session/schedule.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(FieldOf(CheckSchedule(Make(Schedule::LINEAR, -1, 50), 10)),
            "warmup_steps");
  EXPECT_EQ(FieldOf(CheckSchedule(Make(Schedule::LINEAR, 0, -1), 10)),
            "total_steps");
  Schedule ratio;
  ratio.set_min_ratio(2);
  EXPECT_EQ(FieldOf(CheckSchedule(ratio, 10)), "min_ratio");
  EXPECT_TRUE(CheckSchedule(Schedule(), 10).ok());
}

}  // namespace
}  // namespace capstan
