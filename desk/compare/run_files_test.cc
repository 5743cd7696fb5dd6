// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "desk/compare/comparison.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RunFilesTest : public ::testing::Test {
 protected:
  RunFilesTest() {
    folder_ = ::testing::TempDir() + "run_XXXXXX";
    EXPECT_NE(mkdtemp(&folder_[0]), nullptr);
  }

  void Write(const std::string& name, const std::string& text,
             std::ios::openmode mode = std::ios::trunc) {
    std::ofstream(folder_ + "/" + name, mode | std::ios::out) << text;
  }

  std::string ErrorOf(int64_t steps) {
    return std::string(ReadMeasurements(folder_, steps).status().message());
  }

  std::string folder_;
};

// Step `step` took `step` seconds, and sent `step` KB.
std::string Line(int step, const std::string& more = "") {
  return absl::StrCat(
      "{\"step\": ", step, ", \"loss\": ", 10 - step,
      ", \"grad_norm\": 1.5, \"lr\": 0.25, \"step_seconds\": ", step,
      ", \"tokens_per_second\": ", 100 * step, more, "}\n");
}

constexpr char kSummary[] = R"({
  "status": "completed", "parameters": 940416,
  "peak_memory_bytes": [100, 300, 200],
  "memory": {"parameters": {"predicted": 10, "measured": 11.5},
             "total": {"predicted": null, "measured": 40}},
  "bytes_sent_per_step": null, "memory_growth_bytes": [7, null, 6]
})";

TEST_F(RunFilesTest, WhatARunHasMeasured) {
  std::string text;
  for (int step = 1; step <= 6; ++step) {
    text += Line(step, absl::StrCat(", \"bytes_sent\": ", 1000 * step,
                                    ", \"communication_seconds\": 0.5, "
                                    "\"exposed_seconds\": 0.125",
                                    step == 4 ? ", \"skipped\": true" : ""));
    if (step == 3) text += "{\"step\": 3, \"eval_loss\": 2.5}\n";
  }
  Write("metrics.jsonl", text);
  Write("summary.json", kSummary);
  const absl::StatusOr<RunMeasurements> measured = ReadMeasurements(folder_, 6);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_THAT(measured->loss, ::testing::ElementsAre(9, 8, 7, 6, 5, 4));
  EXPECT_EQ(measured->grad_norm.size(), 6);
  EXPECT_EQ(measured->skipped_steps, 1);
  // Medians of steps 3 to 6.
  EXPECT_EQ(measured->step_seconds, 4.5);
  EXPECT_EQ(measured->tokens_per_second, 450);
  EXPECT_EQ(measured->unit, "tokens");
  EXPECT_EQ(*measured->bytes_sent, 4500);
  EXPECT_EQ(*measured->communication_seconds, 0.5);
  EXPECT_EQ(*measured->exposed_seconds, 0.125);
  EXPECT_EQ(measured->parameters, 940416);
  EXPECT_EQ(*measured->peak_memory_bytes, 300);
  EXPECT_EQ(*measured->memory_growth_bytes, 7);
  ASSERT_EQ(measured->memory.size(), 2);
  EXPECT_EQ(measured->memory[0].category, "parameters");
  EXPECT_EQ(*measured->memory[0].predicted, 10);
  EXPECT_EQ(*measured->memory[0].measured, 11.5);
  EXPECT_FALSE(measured->memory[1].predicted.has_value());
}

TEST_F(RunFilesTest, SpeedInWhatTheRunCounts) {
  const std::string line =
      "{\"step\": 1, \"loss\": 2.5, \"samples\": 40, "
      "\"samples_per_second\": 20.5}\n";
  Write("metrics.jsonl", line);
  Write("summary.json", "{}");
  const absl::StatusOr<RunMeasurements> measured = ReadMeasurements(folder_, 1);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->tokens_per_second, 20.5);
  EXPECT_EQ(measured->unit, "samples");
}

TEST_F(RunFilesTest, WhatIsMissingIsUnknown) {
  Write("metrics.jsonl",
        Line(1, ", \"bytes_sent\": 5") +
            Line(2, ", \"bytes_sent\": 5, \"exposed_seconds\": null"));
  Write("summary.json", "{\"memory\": null}");
  const absl::StatusOr<RunMeasurements> measured = ReadMeasurements(folder_, 2);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(*measured->bytes_sent, 5);
  EXPECT_FALSE(measured->communication_seconds.has_value());
  EXPECT_FALSE(measured->exposed_seconds.has_value());
  EXPECT_FALSE(measured->peak_memory_bytes.has_value());
  EXPECT_TRUE(measured->memory.empty());
}

TEST_F(RunFilesTest, NullIsNotANumber) {
  Write("metrics.jsonl",
        "{\"step\": 1, \"loss\": null, \"grad_norm\": null, \"skipped\": "
        "true}\n");
  Write("summary.json", "{}");
  const absl::StatusOr<RunMeasurements> measured = ReadMeasurements(folder_, 1);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_TRUE(std::isnan(measured->loss[0]));
  EXPECT_TRUE(std::isnan(measured->grad_norm[0]));
}

TEST_F(RunFilesTest, DamagedFiles) {
  EXPECT_THAT(ErrorOf(1), HasSubstr("metrics.jsonl"));
  Write("metrics.jsonl", Line(1) + Line(2));
  EXPECT_THAT(ErrorOf(2), HasSubstr("summary.json"));
  Write("summary.json", "[]");
  EXPECT_THAT(ErrorOf(2), HasSubstr("summary.json is no JSON object"));
  Write("summary.json", kSummary);
  EXPECT_THAT(ErrorOf(3),
              AllOf(HasSubstr("metrics.jsonl"), HasSubstr("2 of 3 steps")));
  Write("metrics.jsonl", Line(1) + Line(3));
  EXPECT_THAT(ErrorOf(2), HasSubstr("step 3 after 1"));
  Write("metrics.jsonl", Line(1) + "{\"step\": 2, \"lo");
  EXPECT_THAT(ErrorOf(2), HasSubstr("no object with a step"));
}

TEST_F(RunFilesTest, FollowsAFileThatGrows) {
  MetricsFollower follower(folder_ + "/metrics.jsonl");
  EXPECT_EQ(follower.Poll(), 0) << "no file yet";
  Write("metrics.jsonl", Line(1) + Line(2));
  EXPECT_EQ(follower.Poll(), 2);
  Write("metrics.jsonl", "{\"step\": 2, \"eval_loss\": 1.0}\n", std::ios::app);
  const std::string line = Line(3);
  Write("metrics.jsonl", line.substr(0, 20), std::ios::app);
  EXPECT_EQ(follower.Poll(), 2) << "the line is not whole";
  Write("metrics.jsonl", line.substr(20), std::ios::app);
  EXPECT_EQ(follower.Poll(), 3);
}

}  // namespace
}  // namespace capstan
