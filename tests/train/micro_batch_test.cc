// SPDX-License-Identifier: Apache-2.0
//
// micro_batch_size: AUTO.
#include "trainer/session/micro_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MicroBatchTest, SizesCutTheGlobalBatchEvenly) {
  EXPECT_THAT(MicroBatchSizes(24, 2), ElementsAre(12, 6, 4, 3, 2, 1));
  EXPECT_THAT(MicroBatchSizes(3, 3), ElementsAre(1));
  // Of 6 samples a rank, at most; 4 and 3 at a time would take one 8.
  EXPECT_THAT(MicroBatchSizes(16, 3), ElementsAre(2, 1));
  EXPECT_THAT(MicroBatchSizes(3, 5), ElementsAre(1));
}

ToyRun Automatic(int64_t planned) {
  ToyRun run;
  run.ranks = 2;
  run.global_batch = 24;
  run.automatic = true;
  run.micro_batch = planned;
  run.train = "max_steps: 4";
  return run;
}

TEST(MicroBatchTest, WhatIsPlannedIsTriedAndUsed) {
  const std::string folder = MustTrain(Automatic(6));
  EXPECT_THAT(Printed(folder), HasSubstr("24 = micro 6 x 2 ranks x "));
  EXPECT_THAT(Printed(folder), HasSubstr("as planned; a trial step fits"));
  ToyRun fixed = Automatic(6);
  fixed.automatic = false;
  // The trial leaves nothing behind.
  EXPECT_EQ(ReadMetrics(folder).losses(),
            ReadMetrics(MustTrain(fixed)).losses());
}

// Only one rank is out of memory: all take less.
TEST(MicroBatchTest, HalvedUntilItFitsOnAllRanks) {
  ToyRun run = Automatic(12);
  run.room = [](int rank) { return rank == 1 ? int64_t{4} : int64_t{100}; };
  const std::string folder = MustTrain(run);
  EXPECT_THAT(Printed(folder), HasSubstr("AUTO is 3 x 2 ranks x "
                                         "accumulation 4: 12 was planned"));
  ToyRun fixed = Automatic(3);
  fixed.automatic = false;
  EXPECT_EQ(ReadMetrics(folder).losses(),
            ReadMetrics(MustTrain(fixed)).losses());
}

TEST(MicroBatchTest, NoRoomForOneSampleIsAnError) {
  ToyRun run = Automatic(12);
  run.room = [](int) { return int64_t{0}; };
  EXPECT_EQ(RunToy(&run), 1);
}

}  // namespace
}  // namespace capstan
