// SPDX-License-Identifier: Apache-2.0
//
// What objectives know of a whole step, and what they tell beside the loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/npy.h"
#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"

namespace capstan {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// Samples have different numbers of targets, some none.
ToyRun Rich() {
  ToyRun run;
  run.rich_objective = true;
  run.train = "max_steps: 6 eval_every: 3 log_every: 2";
  run.trained = [](int64_t sample, int64_t place) {
    return sample % 4 >= 2 || (sample % 4 == 1 && place == 2);
  };
  return run;
}

std::vector<double> Of(const std::vector<nlohmann::json>& lines,
                       const char* key) {
  std::vector<double> values;
  for (const nlohmann::json& line : lines) {
    if (line.contains(key)) values.push_back(line[key]);
  }
  return values;
}

TEST(MeasureTest, TotalsAndNumbersAreOfAllRanksAndMicroBatches) {
  ToyRun whole = Rich();
  whole.micro_batch = 12;
  const Metrics one = ReadMetrics(MustTrain(whole));
  ASSERT_EQ(one.losses().size(), 6);
  // 5 of 12 samples' targets are in a step; the loss is 100 / N of the mean.
  const std::vector<double> means = Of(one.steps, "mean");
  ASSERT_EQ(means.size(), 3) << "every second step";
  EXPECT_GT(one.losses()[1], means[0]);
  for (const auto& [ranks, micro] : std::vector<std::pair<int, int>>{
           {1, 3}, {2, 6}, {2, 2}, {3, 1}, {2, 4}, {5, 4}}) {
    SCOPED_TRACE(std::to_string(ranks) + " x " + std::to_string(micro));
    ToyRun split = Rich();
    split.ranks = ranks;
    split.micro_batch = micro;
    const Metrics got = ReadMetrics(MustTrain(split));
    EXPECT_THAT(got.losses(), Pointwise(DoubleNear(2e-5), one.losses()));
    EXPECT_THAT(Of(got.steps, "mean"), Pointwise(DoubleNear(2e-6), means));
    EXPECT_THAT(Of(got.evals, "eval_loss"),
                Pointwise(DoubleNear(2e-5), Of(one.evals, "eval_loss")));
    EXPECT_THAT(Of(got.evals, "test_mean"),
                Pointwise(DoubleNear(2e-6), Of(one.evals, "test_mean")));
  }
}

// The first micro-batch of each step tells no number: the others' were once
// added to the last step's.
TEST(MeasureTest, AMicroBatchMayHaveNoNumbers) {
  ToyRun run = Rich();
  run.micro_batch = 1;
  run.train = "max_steps: 6 log_every: 1";
  const std::vector<double> means =
      Of(ReadMetrics(MustTrain(run)).steps, "mean");
  ASSERT_EQ(means.size(), 6);
  run.sparse_metrics = true;
  EXPECT_EQ(Of(ReadMetrics(MustTrain(run)).steps, "mean"), means);
}

TEST(MeasureTest, WhatIsMeasuredIsWrittenInEveryForm) {
  for (const int ranks : {1, 3}) {
    ToyRun run = Rich();
    run.ranks = ranks;
    const std::string folder = MustTrain(run);
    const Metrics metrics = ReadMetrics(folder);
    EXPECT_THAT(Of(metrics.others, "eval_first"),
                ::testing::ElementsAre(1.0, 1.0));
    EXPECT_THAT(Of(metrics.others, "eval_last_time"),
                ::testing::ElementsAre(0.0, 1.0));
    EXPECT_THAT(Printed(folder), HasSubstr("step 6  eval_first 1.0000"));
    EXPECT_THAT(ReadText(folder + "/ramp.svg"),
                HasSubstr("value after step 6"));
    const auto array = NpyArray::Open(folder + "/ramp.npy");
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ((*array)->shape(), (std::vector<int64_t>{1, 5}));
    std::vector<double> values(5);
    (*array)->Read(0, 5, values.data());
    EXPECT_EQ(values, (std::vector<double>{1, 2, 3, 4, 5}));
  }
}

// LibTorch is told, and two runs are one, bit by bit.
TEST(MeasureTest, DeterministicRunsRepeat) {
  ToyRun run = Rich();
  run.ranks = 2;
  EXPECT_THAT(Of(ReadMetrics(MustTrain(run)).others, "eval_deterministic"),
              ::testing::ElementsAre(0.0, 0.0));
  run.train += " deterministic: true";
  const std::string first = MustTrain(run);
  const std::string second = MustTrain(run);
  EXPECT_THAT(Of(ReadMetrics(first).others, "eval_deterministic"),
              ::testing::ElementsAre(1.0, 1.0));
  EXPECT_EQ(ReadMetrics(first).losses(), ReadMetrics(second).losses());
  EXPECT_EQ(ReadMetrics(first).grad_norms(), ReadMetrics(second).grad_norms());
  EXPECT_TRUE(ReadText(first + "/final/model.safetensors") ==
              ReadText(second + "/final/model.safetensors"));
}

}  // namespace
}  // namespace capstan
