// SPDX-License-Identifier: Apache-2.0
#include "desk/track/measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "desk/run_folder/file_times.h"
#include "desk/track/sink.h"

namespace capstan::track {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;

class MeasuresTest : public ::testing::Test {
 protected:
  void Append(const std::string& file, const std::string& line) {
    std::ofstream(folder_.path() + "/" + file, std::ios::app) << line << "\n";
  }
  void Rank(int rank, double exposed) {
    ASSERT_TRUE(MakeFolder(folder_.path() + "/ranks").ok());
    const std::string file = absl::StrCat("ranks/rank-0000", rank, ".jsonl");
    Append(file, R"({"time": 1, "rank": 0, "host": "a"})");
    Append(file, absl::StrCat(R"({"step": 10, "steps": 10, "step_seconds": 5, )"
                              R"("rss_bytes": 1000, "exposed": )",
                              exposed, "}"));
  }
  // As of `end`.
  Measures Take(double end) {
    Follower follower(folder_.path());
    Meter meter;
    for (const Row& row : follower.Poll()) meter.Add(row, follower.begins());
    RunState state;
    state.end_time = end;
    Measures measures =
        meter.Take(follower, {{"train.max_steps", "40"}}, state);
    measures.run = "a \"run\"";
    return measures;
  }

  const ScratchFolder folder_;
};

// Ten steps of half a second, one of them without an update, within twenty
// seconds in which the run was started again.
TEST_F(MeasuresTest, GoodputCountsStepsThatCount) {
  Append("events.jsonl", R"({"time": 1000, "step": 0, "kind": "start"})");
  Append("events.jsonl", R"({"time": 1012, "step": 4, "kind": "restart"})");
  for (int step = 1; step <= 10; ++step) {
    Append("metrics.jsonl",
           absl::StrCat("{\"step\": ", step, ", \"loss\": 2, \"time\": ",
                        1010.0 + step, ", \"step_seconds\": 0.5",
                        step == 5 ? ", \"skipped\": true" : "",
                        ", \"tokens\": ", 100 * step, "}"));
  }
  const Measures measures = Take(1020.0);
  EXPECT_THAT(measures.Get("goodput_ratio"),
              Optional(DoubleNear(4.5 / 20, 1e-9)));
  EXPECT_EQ(measures.Get("restarts_total"), 1.0);
  EXPECT_EQ(measures.Get("skipped_steps_total"), 1.0);
  EXPECT_EQ(measures.Get("tokens_total"), 1000.0);
  EXPECT_THAT(measures.progress, Optional(DoubleNear(25.0, 1e-9)));
  // From line to line a second goes by, but of the first step and of the one
  // after the restart only their own half second counts.
  EXPECT_THAT(measures.seconds_left, Optional(DoubleNear(27.0, 1e-9)));
}

TEST_F(MeasuresTest, TheTimeLeftKnowsNothingOfTheNightBeforeARestart) {
  Append("events.jsonl", R"({"time": 9000, "step": 5, "kind": "resume"})");
  for (int step = 1; step <= 10; ++step) {
    Append(
        "metrics.jsonl",
        absl::StrCat("{\"step\": ", step, ", \"step_seconds\": 1, \"time\": ",
                     step + (step > 5 ? 9000.0 : 1000.0), "}"));
  }
  EXPECT_THAT(Take(9010.0).seconds_left, Optional(DoubleNear(30.0, 1.0)));
}

TEST_F(MeasuresTest, ProgressIsTowardsTheStepThatTheRunWasToldToEndAt) {
  Append("metrics.jsonl", R"({"step": 10, "loss": 2, "step_seconds": 0.5})");
  EXPECT_THAT(Take(NowSeconds()).progress, Optional(DoubleNear(25.0, 1e-9)));
  Append("events.jsonl",
         R"({"time": 1, "step": 9, "kind": "control", )"
         R"("text": "the run ends after step 20 instead of 40"})");
  EXPECT_THAT(Take(NowSeconds()).progress, Optional(DoubleNear(50.0, 1e-9)));
}

TEST_F(MeasuresTest, TheLateRankIsTheOneThatWaitsForNoOther) {
  Append("metrics.jsonl", R"({"step": 10, "loss": 2, "step_seconds": 0.5})");
  Rank(0, 2.0);
  Rank(1, 0.0);
  Rank(2, 2.5);
  const Measures measures = Take(NowSeconds());
  EXPECT_EQ(measures.Get("late_rank"), 1.0);
  EXPECT_THAT(measures.Get("late_rank_seconds"),
              Optional(DoubleNear(0.2, 1e-9)));
}

TEST_F(MeasuresTest, RanksThatTheRunNoLongerHasAreOut) {
  Append("metrics.jsonl", R"({"step": 10, "loss": 2, "step_seconds": 0.5})");
  Rank(0, 2.0);
  Rank(1, 1.0);
  Rank(2, 0.0);
  Append("ranks/rank-00000.jsonl", R"({"rank": 0, "world_size": 2})");
  Append("ranks/rank-00000.jsonl",
         R"({"steps": 10, "step_seconds": 5, "exposed": 2, "rss_bytes": 7})");
  const Measures measures = Take(NowSeconds());
  EXPECT_EQ(measures.Get("late_rank"), 1.0);
  EXPECT_THAT(
      PrometheusText({measures}),
      AllOf(HasSubstr("\",rank=\"1\"} 1000\n"), Not(HasSubstr("rank=\"2\""))));
}

TEST_F(MeasuresTest, PrometheusHasAFamilyOnceAndEscapesLabels) {
  Append("metrics.jsonl", R"({"step": 10, "loss": 2, "step_seconds": 0.5})");
  Rank(0, 2.0);
  Rank(1, 0.0);
  const Measures measures = Take(NowSeconds());
  const std::string text = PrometheusText({measures, measures});
  EXPECT_THAT(text,
              AllOf(HasSubstr("capstan_loss{run=\"a \\\"run\\\"\",folder=\"" +
                              folder_.path() + "\"} 2\n"),
                    HasSubstr("\",rank=\"1\"} 1000\n")));
  EXPECT_EQ(text.find("# TYPE capstan_loss gauge"),
            text.rfind("# TYPE capstan_loss gauge"));
}

}  // namespace
}  // namespace capstan::track
