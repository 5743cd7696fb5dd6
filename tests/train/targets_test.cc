// SPDX-License-Identifier: Apache-2.0
//
// The loss is the sum over all trained tokens of a step, wherever they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void ExpectNear(const std::vector<double>& got,
                const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 2e-6) << i;
  }
}

// Every fourth sample has no target, every other fourth only one.
bool Uneven(int64_t sample, int64_t place) {
  return sample % 4 >= 2 || (sample % 4 == 1 && place == 2);
}

ToyRun Steps(int64_t steps) {
  ToyRun run;
  run.train = "max_grad_norm: 0.6 max_steps: " + std::to_string(steps);
  run.trained = Uneven;
  return run;
}

TEST(TargetsTest, AnySplitIsOneBigBatch) {
  ToyRun whole = Steps(8);
  whole.micro_batch = 12;
  const Metrics one = ReadMetrics(MustTrain(whole));
  for (const auto& [ranks, micro] : std::vector<std::pair<int, int>>{
           {1, 4},
           {1, 1},
           {2, 6},
           {2, 1},
           {3, 4},
           {4, 1},
           // In the last micro-step one rank is idle, or more.
           {2, 4},
           {4, 2},
           {5, 4}}) {
    SCOPED_TRACE(std::to_string(ranks) + " x " + std::to_string(micro));
    ToyRun split = Steps(8);
    split.ranks = ranks;
    split.micro_batch = micro;
    const Metrics parts = ReadMetrics(MustTrain(split));
    ExpectNear(parts.losses(), one.losses());
    ExpectNear(parts.grad_norms(), one.grad_norms());
    EXPECT_EQ(parts.Values("tokens"), one.Values("tokens"));
  }
}

// Rank 0's samples have no target in any step.
TEST(TargetsTest, ARankWithoutTargets) {
  ToyRun two = Steps(6);
  two.trained = [](int64_t sample, int64_t) { return sample % 4 >= 2; };
  two.micro_batch = 2;
  two.global_batch = 4;
  ToyRun one = two;
  two.ranks = 2;
  const std::string folder = MustTrain(two);
  const Metrics got = ReadMetrics(folder);
  ExpectNear(got.losses(), ReadMetrics(MustTrain(one)).losses());
  for (const double loss : got.losses()) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_THAT(Printed(folder), Not(HasSubstr("no targets")));
}

TEST(TargetsTest, AStepWithoutTargetsIsSkippedAndToldOfOnce) {
  ToyRun run = Steps(8);
  // Samples 12 to 23 are step 2's, 24 to 35 step 3's.
  run.trained = [](int64_t sample, int64_t) {
    return sample < 12 || sample >= 36;
  };
  for (const int ranks : {1, 2}) {
    run.ranks = ranks;
    run.micro_batch = 3;
    run.output_dir.clear();
    const std::string folder = MustTrain(run);
    const Metrics metrics = ReadMetrics(folder);
    ASSERT_EQ(metrics.steps.size(), 8);
    EXPECT_TRUE(metrics.steps[1].value("skipped", false));
    EXPECT_TRUE(metrics.steps[2].value("skipped", false));
    EXPECT_FALSE(metrics.steps[3].value("skipped", false));
    EXPECT_EQ(metrics.losses()[1], 0.0);
    for (const double norm : metrics.grad_norms()) {
      EXPECT_TRUE(std::isfinite(norm));
    }
    const std::string printed = Printed(folder);
    const size_t first = printed.find("no targets");
    ASSERT_NE(first, std::string::npos) << printed;
    EXPECT_EQ(printed.find("no targets", first + 1), std::string::npos);
  }
}

TEST(TargetsTest, AnEvaluationWithoutTargetsHasNoLoss) {
  ToyRun run = Steps(4);
  // Of the first batch of 4, which is all that is evaluated.
  run.trained = [](int64_t sample, int64_t) { return sample >= 4; };
  run.train += " eval_every: 2 eval_batches: 1 keep_best: true";
  const std::string folder = MustTrain(run);
  EXPECT_TRUE(ReadMetrics(folder).evals.empty());
  EXPECT_THAT(Printed(folder),
              HasSubstr("the evaluation's data (eval_data) gives no loss"));
  EXPECT_TRUE(ReadJson(folder + "/summary.json")["eval_loss"].is_null());
}

// Each counts as its targets are, not as its batch is.
TEST(TargetsTest, AnEvaluationIsTheSameOnAnyRanksAndBatches) {
  ToyRun run = Steps(3);
  run.train += " eval_every: 1";
  const auto losses = [](const ToyRun& of) {
    std::vector<double> values;
    for (const auto& line : ReadMetrics(MustTrain(of)).evals) {
      values.push_back(line["eval_loss"]);
    }
    return values;
  };
  const std::vector<double> one = losses(run);
  ASSERT_EQ(one.size(), 3);
  run.ranks = 3;
  run.micro_batch = 1;
  ExpectNear(losses(run), one);
}

}  // namespace
}  // namespace capstan
