// SPDX-License-Identifier: Apache-2.0
//
// testdata/schedules.json: multipliers by step from transformers and torch.
#include "trainer/train/schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugins/sdk/status.h"

namespace capstan {
namespace {

std::vector<double> Golden(const std::string& name) {
  std::ifstream file("trainer/train/testdata/schedules.json");
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

// A scheduler that is stepped once a rank reaches 0 early and, being a cosine,
// climbs again: ours is a function of the step, and stays at its end.
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

TEST(ScheduleTest, BadValuesNameTheirField) {
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
