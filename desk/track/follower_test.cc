// SPDX-License-Identifier: Apache-2.0
#include "desk/track/follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "desk/track/run_folder.h"

namespace capstan::track {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class FollowerTest : public ::testing::Test {
 protected:
  void Append(const std::string& text, const std::string& file = "metrics") {
    std::ofstream(folder_.path() + "/" + file + ".jsonl", std::ios::app)
        << text;
  }
  // As a run that goes on from a checkpoint does.
  void Rewrite(const std::string& text) {
    ASSERT_TRUE(ReplaceFile(folder_.path() + "/metrics.jsonl", text).ok());
  }
  std::vector<int64_t> Steps() {
    rows_ = follower_.Poll();
    std::vector<int64_t> steps;
    for (const Row& row : rows_) steps.push_back(row.step);
    return steps;
  }

  const ScratchFolder folder_;
  Follower follower_{folder_.path()};
  std::vector<Row> rows_;
};

TEST_F(FollowerTest, AStepIsHandedOutWithItsEvaluationOnceTheNextOneIsThere) {
  EXPECT_THAT(Steps(), IsEmpty());
  Append("{\"step\": 1, \"loss\": 3, \"time\": 10.5}\n");
  Append("{\"step\": 1, \"eval_loss\": null, \"skipped\": true}\n{\"step\":");
  EXPECT_THAT(Steps(), IsEmpty());
  Append(" 2, \"loss\": 2}\n");
  EXPECT_THAT(Steps(), ElementsAre(1));
  EXPECT_THAT(rows_[0].metrics[0], Pair("loss", 3.0));
  EXPECT_TRUE(std::isnan(rows_[0].Get("eval_loss").value_or(0.0)));
  EXPECT_EQ(rows_[0].Get("skipped"), 1.0);
  EXPECT_EQ(rows_[0].time, 10.5);
  EXPECT_EQ(follower_.newest()->step, 2);
  EXPECT_EQ(follower_.TakeNewest()->step, 2);
  EXPECT_THAT(Steps(), IsEmpty());
}

TEST_F(FollowerTest, StepsThatAResumedRunTakesAgainAreNotHandedOutAgain) {
  const std::string first = "{\"step\": 1, \"loss\": 1}\n";
  Append(first + "{\"step\": 2, \"loss\": 2}\n{\"step\": 3, \"loss\": 3}\n");
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  const std::string id = follower_.id();
  Rewrite(first);
  EXPECT_THAT(Steps(), IsEmpty());
  Append("{\"step\": 2, \"loss\": 2}\n{\"step\": 3, \"loss\": 3.5}\n");
  Append("{\"step\": 4, \"loss\": 4}\n");
  EXPECT_THAT(Steps(), ElementsAre(3));
  EXPECT_EQ(rows_[0].Get("loss"), 3.5);
  EXPECT_EQ(follower_.id(), id);
}

// A run that is stopped before an evaluation that is due makes it when it goes
// on.
TEST_F(FollowerTest, AnEvaluationOfTheLastStepThatWasHandedOut) {
  const std::string lines =
      "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2}\n";
  Append(lines);
  EXPECT_THAT(Steps(), ElementsAre(1));
  EXPECT_FALSE(follower_.TakeNewest()->late);
  Rewrite(lines);
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_FALSE(follower_.newest().has_value());
  Append("{\"step\": 1, \"eval_loss\": 8}\n{\"step\": 2, \"eval_loss\": 9}\n");
  Append("{\"step\": 3, \"loss\": 3}\n");
  EXPECT_THAT(Steps(), ElementsAre(2));
  EXPECT_TRUE(rows_[0].late);
  EXPECT_THAT(rows_[0].metrics, ElementsAre(Pair("eval_loss", 9.0)));
}

TEST_F(FollowerTest, AFileThatWasBegunAnewIsAnotherRuns) {
  Append("{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2}\n");
  EXPECT_THAT(Steps(), ElementsAre(1));
  const std::string id = follower_.id();
  // In place, and longer than what was read.
  std::ofstream(folder_.path() + "/metrics.jsonl")
      << "{\"step\": 1, \"loss\": 9}\n{\"step\": 2, \"loss\": 2}\n"
      << "{\"step\": 3, \"loss\": 2}\n";
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  EXPECT_NE(follower_.id(), id);
}

TEST_F(FollowerTest, EventsComeWithTheirStepOrTheNext) {
  Append("{\"step\": 1, \"kind\": \"start\", \"text\": \"a\", \"time\": 5}\n",
         "events");
  Append("{\"step\": 3, \"kind\": \"save\", \"time\": 7}\n", "events");
  Append("{\"step\": 2}\n{\"step\": 3}\n{\"step\": 4}\n");
  EXPECT_THAT(Steps(), ElementsAre(2, 3));
  ASSERT_EQ(rows_[0].events.size(), 1);
  EXPECT_EQ(rows_[0].events[0].text, "a");
  ASSERT_EQ(rows_[1].events.size(), 1);
  EXPECT_EQ(rows_[1].events[0].kind, "save");
}

TEST_F(FollowerTest, LargeFilesComeInPieces) {
  constexpr int kSteps = 100000;
  std::string text;
  for (int step = 1; step <= kSteps; ++step) {
    absl::StrAppend(&text, "{\"step\": ", step, ", \"loss\": ", step,
                    ".25, \"grad_norm\": 1.0, \"tokens\": 12345678}\n");
  }
  Append(text);
  size_t rows = Steps().size();
  EXPECT_TRUE(follower_.more());
  while (follower_.more()) rows += Steps().size();
  EXPECT_EQ(rows, kSteps - 1);
}

TEST(SettingsTest, AreNamedAsTheCommandLineNamesThem) {
  const Settings settings = SettingsOf(
      "name: \"a \\\"b\\\"\"\nstrategy {\n  [plugin/capstan.ddp.Config] {\n"
      "    bucket_cap_mib: 5\n  }\n}\nprofile {\n  steps: 3\n  steps: 4\n}\n");
  EXPECT_THAT(settings, ElementsAre(Pair("name", "a \"b\""),
                                    Pair("profile.steps", "3, 4"),
                                    Pair("strategy", "capstan.ddp"),
                                    Pair("strategy.bucket_cap_mib", "5")));
}

}  // namespace
}  // namespace capstan::track
