// SPDX-License-Identifier: Apache-2.0
//
// Samples are for looking at: one that can't be made stops no run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Samples before training, after steps 2 and 4, and after training.
ToyRun Sampled(bool sharded) {
  ToyRun run;
  run.ranks = 2;
  run.sharded = sharded;
  run.micro_batch = 6;
  run.train = "max_steps: 6 eval_every: 2 eval_batches: 2";
  return run;
}

// The first three fail in forward `forward` of rank `rank`, each in its own
// way.
ToyRun Failing(bool sharded, int rank, int forward) {
  ToyRun run = Sampled(sharded);
  run.sample_fault = [=](int r, int sample, int f) {
    constexpr SampleFault kFaults[] = {SampleFault::kBefore,
                                       SampleFault::kInside,
                                       SampleFault::kAfter, SampleFault::kNone};
    return r == rank && f == forward ? kFaults[sample] : SampleFault::kNone;
  };
  return run;
}

int Generations(const std::string& folder) {
  const std::string text = ReadText(folder + "/generations.jsonl");
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

TEST(SampleTest, AThrowIsNotedAndTheRunGoesOn) {
  const std::string folder = MustTrain(Failing(/*sharded=*/false, 0, 2));
  EXPECT_THAT(Printed(folder),
              AllOf(HasSubstr("no sample before training: "),
                    HasSubstr("no sample after step 2: "),
                    HasSubstr("no sample after step 4: "),
                    Not(HasSubstr("no sample after training"))));
  EXPECT_EQ(Generations(folder), 1);
  EXPECT_EQ(ReadMetrics(folder).losses(),
            ReadMetrics(MustTrain(Sampled(false))).losses());
}

TEST(SampleTest, AnEndThatFailsTooIsNotedAsWell) {
  ToyRun run = Failing(/*sharded=*/false, 0, 2);
  run.ranks = 1;
  run.end_fails = true;
  const std::string folder = MustTrain(run);
  EXPECT_THAT(Printed(folder), AllOf(HasSubstr("no sample before training: "),
                                     HasSubstr("no sample after step 4: ")));
  EXPECT_EQ(Generations(folder), 1);
}

// Forward has collectives, and only one rank fails: the others leave their
// samples, too, and are in step with it afterwards.
TEST(SampleTest, ARankThatFailsTakesTheOthersAlong) {
  const std::vector<double> losses =
      ReadMetrics(MustTrain(Sampled(/*sharded=*/true))).losses();
  for (const int rank : {0, 1}) {
    for (const int forward : {0, 2, 3}) {
      SCOPED_TRACE(std::to_string(rank) + ", " + std::to_string(forward));
      const std::string folder =
          MustTrain(Failing(/*sharded=*/true, rank, forward));
      const std::string why = rank == 0 ? "" : "another rank could not sample";
      EXPECT_THAT(Printed(folder),
                  AllOf(HasSubstr("no sample before training: " + why),
                        HasSubstr("no sample after step 2: " + why),
                        HasSubstr("no sample after step 4: " + why),
                        Not(HasSubstr("no sample after training"))));
      EXPECT_EQ(Generations(folder), 1);
      EXPECT_EQ(ReadMetrics(folder).losses(), losses);
    }
  }
}

}  // namespace
}  // namespace capstan
