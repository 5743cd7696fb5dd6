// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/step_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace capstan {
namespace {

StepMedians::Step StepOf(double seconds) {
  StepMedians::Step step;
  step.seconds = seconds;
  step.tokens = 100.0;
  step.communication.bytes_sent = static_cast<int64_t>(1000 * seconds);
  step.communication.busy_seconds = seconds / 2;
  step.communication.exposed_seconds = seconds / 4;
  return step;
}

RunSummary SummaryOf(const std::vector<double>& seconds) {
  StepMedians medians;
  for (const double value : seconds) medians.Add(StepOf(value));
  RunSummary summary;
  medians.Summarize(/*peak=*/0.0, &summary);
  return summary;
}

TEST(StepMediansTest, LeaveWarmUpOut) {
  EXPECT_EQ(SummaryOf({}).step_seconds_median, 0.0);
  // Unless there is nothing else.
  EXPECT_EQ(SummaryOf({9}).step_seconds_median, 9.0);
  EXPECT_EQ(SummaryOf({9, 8}).step_seconds_median, 8.0);
  EXPECT_EQ(SummaryOf({9, 8, 1}).step_seconds_median, 1.0);
  EXPECT_EQ(SummaryOf({9, 8, 1, 2}).step_seconds_median, 1.5);
  EXPECT_EQ(SummaryOf({9, 8, 1, 2, 4}).step_seconds_median, 2.0);
}

TEST(StepMediansTest, OfAllNumbers) {
  const RunSummary summary = SummaryOf({9, 8, 1, 2, 4});
  EXPECT_EQ(summary.tokens_per_second, 50.0);
  EXPECT_EQ(summary.bytes_sent_per_step, 7000 / 3) << "the mean";
  EXPECT_EQ(summary.communication_seconds, 1.0);
  EXPECT_EQ(summary.exposed_communication_seconds, 0.5);
  StepMedians medians;
  medians.Add(StepOf(3));
  RunSummary one;
  medians.Summarize(/*peak=*/0.0, &one);
  EXPECT_EQ(one.bytes_sent_per_step, 3000);
}

TEST(StepMediansTest, Utilisation) {
  StepMedians medians;
  for (const double seconds : {9, 8, 1, 2, 4}) {
    StepMedians::Step step = StepOf(seconds);
    step.flops = 100.0;
    medians.Add(step);
  }
  RunSummary summary;
  medians.Summarize(/*peak=*/200.0, &summary);
  EXPECT_EQ(summary.mfu, 0.25);
  EXPECT_FALSE(summary.hfu.has_value()) << "nothing is recomputed";
  StepMedians again;
  StepMedians::Step step = StepOf(2);
  step.flops = 100.0;
  step.recomputed = 20.0;
  again.Add(step);
  again.Summarize(/*peak=*/200.0, &summary);
  EXPECT_EQ(summary.mfu, 0.25);
  EXPECT_EQ(summary.hfu, 0.3);
  EXPECT_FALSE(SummaryOf({1, 2, 3}).mfu.has_value()) << "the peak is unknown";
}

TEST(StepMediansTest, ExactForThousandsOfSteps) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<double> seconds(2 + 8191);
  for (double& value : seconds) value = uniform(random);
  std::vector<double> sorted(seconds.begin() + 2, seconds.end());
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(SummaryOf(seconds).step_seconds_median, sorted[8191 / 2]);
}

// Regression test: the vectors once grew without bound.
TEST(StepMediansTest, TakeConstantMemory) {
  constexpr int kSteps = 300000;
  StepMedians medians;
  size_t most = 0;
  // Each step slower than the last: a window over recent steps would be far
  // off.
  for (int i = 0; i < kSteps; ++i) {
    medians.Add(StepOf(i));
    most = std::max(most, medians.kept());
  }
  EXPECT_LE(most, 8192u);
  EXPECT_GE(medians.kept(), 4096u);
  RunSummary summary;
  medians.Summarize(/*peak=*/0.0, &summary);
  EXPECT_NEAR(summary.step_seconds_median, kSteps / 2, 0.001 * kSteps);
}

}  // namespace
}  // namespace capstan
