// SPDX-License-Identifier: Apache-2.0
#include "desk/forget/same_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunSnapshot At(int64_t step, int64_t samples, int64_t global_batch_size) {
  RunSnapshot snapshot;
  snapshot.path = "step-" + std::to_string(step);
  TrainState& state = snapshot.manifest.train_state;
  state.step = step;
  state.samples = samples;
  state.global_batch_size = global_batch_size;
  return snapshot;
}

TEST(SameRunTest, AllStepsThatAreDoneAgainHadTheBatch) {
  const std::vector<RunSnapshot> same = {At(2, 16, 8), At(6, 48, 8)};
  EXPECT_TRUE(CheckBatch(same, nullptr, 8).ok());
  EXPECT_TRUE(CheckBatch(same, &same[0], 8).ok());
  EXPECT_THAT(
      std::string(CheckBatch(same, &same[0], 4).message()),
      AllOf(HasSubstr("can't be told"), HasSubstr("not all steps from 3 to 6"),
            HasSubstr("batch.global_batch_size of 4")));
  // Then four steps of eight.
  const std::vector<RunSnapshot> other = {At(2, 8, 4), At(6, 40, 8)};
  EXPECT_TRUE(CheckBatch(other, &other[0], 8).ok());
  EXPECT_FALSE(CheckBatch(other, nullptr, 8).ok());
  // The checkpoint before the change is gone.
  const std::vector<RunSnapshot> pruned = {At(6, 40, 8)};
  EXPECT_FALSE(CheckBatch(pruned, nullptr, 8).ok());
}

std::string RunThatSaid(const std::string& events) {
  std::string folder = ::testing::TempDir() + "/same-run-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/events.jsonl") << events;
  return folder;
}

TEST(SameRunTest, WhatWasChangedOnTheWayIsFound) {
  const auto refusal = [](const std::string& events, bool evaluations) {
    return std::string(
        CheckHistory(RunThatSaid(events), evaluations).message());
  };
  EXPECT_EQ(refusal("", true), "");
  const std::string quiet =
      "{\"kind\": \"start\", \"step\": 0}\n"
      "{\"kind\": \"note\", \"text\": \"goes on from x\"}\n";
  EXPECT_EQ(refusal(quiet, true), "");
  EXPECT_THAT(refusal(quiet + "{\"kind\": \"note\", \"text\": \"goes on with "
                              "another train.seed: 1 -> 2\"}\n",
                      false),
              AllOf(HasSubstr("was changed while it went on"),
                    HasSubstr("train.seed: 1 -> 2")));
  EXPECT_THAT(
      refusal("{\"kind\": \"control\", \"text\": \"the run ends after step 9 "
              "instead of 6; this changes the schedule, whose\"}\n",
              false),
      HasSubstr("changes the schedule"));
  const std::string evaluation =
      "{\"kind\": \"note\", \"text\": \"goes on with another eval_data: a -> "
      "b\"}\n";
  EXPECT_EQ(refusal(evaluation, false), "");
  EXPECT_THAT(refusal(evaluation, true), HasSubstr("eval_data"));
}

}  // namespace
}  // namespace capstan
