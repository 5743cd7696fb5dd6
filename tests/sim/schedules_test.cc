// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "tests/sim/batch.h"
#include "tests/sim/schedule.h"

namespace capstan::sim {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(SchedulesTest, ViolateNothing) {
  BatchOptions options;
  options.count = 2000;
  // A busy machine plays fewer.
  options.seconds = 80;
  const BatchResult result = PlayMany(options);
  std::cout << result.played << " schedules in " << result.seconds << " s\n";
  EXPECT_GE(result.played, 500);
  for (const auto& [seed, violation] : result.failures) {
    ADD_FAILURE() << "seed " << seed << ": " << violation
                  << "\ntests/sim/run.sh --seed=" << seed
                  << " tells the story of its shortest part";
  }
}

TEST(SchedulesTest, AreTheSameEachTime) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const Schedule schedule = MakeSchedule(seed, 16);
    const Outcome once = PlayAlone(schedule, /*tell=*/false);
    const Outcome again = PlayAlone(schedule, /*tell=*/true);
    EXPECT_EQ(once.trace, again.trace) << seed;
    EXPECT_EQ(once.length, again.length) << seed;
    EXPECT_GT(once.switches, 100) << seed;
  }
}

TEST(SchedulesTest, AStoryTellsWhatHappened) {
  Schedule schedule;
  schedule.hosts = 2;
  schedule.steps = 6;
  schedule.faults = {
      {Fault::kCrashHost, 200 * kMillisecond, 1, 0, 5 * kSecond}};
  const Outcome outcome = PlayAlone(schedule, /*tell=*/true);
  EXPECT_EQ(outcome.violation, "");
  EXPECT_THAT(outcome.story, Contains(HasSubstr("host1: loses power")));
  EXPECT_THAT(outcome.story, Contains(HasSubstr("goes on from step")));
  EXPECT_THAT(outcome.story, Contains(HasSubstr("has saved step 6")));
}

// Ranks wait for a host that says nothing any more, while another has died.
TEST(SchedulesTest, ADeathIsToldBesideASilentHost) {
  Schedule schedule;
  schedule.hosts = 5;
  schedule.steps = 8;
  schedule.save_every = 1;
  schedule.max_restarts = 0;
  schedule.faults = {
      {Fault::kCrashHost, 344 * kMillisecond, 2, 0, 59 * kSecond},
      {Fault::kKillLauncher, 952 * kMillisecond, 4}};
  const Outcome outcome = PlayAlone(schedule, /*tell=*/true);
  EXPECT_EQ(outcome.violation, "");
  EXPECT_THAT(outcome.story, Contains(HasSubstr("rank 4")));
}

TEST(ShrinkTest, LeavesOnlyWhatIsNeeded) {
  Schedule schedule;
  schedule.hosts = 8;
  schedule.ranks_per_host = 3;
  for (const Fault::Kind kind :
       {Fault::kSlowDisk, Fault::kSkewClock, Fault::kKillRank, Fault::kPowerCut,
        Fault::kStopJob, Fault::kFullDisk}) {
    Fault fault;
    fault.kind = kind;
    fault.host = kind == Fault::kKillRank ? 1 : 0;
    schedule.faults.push_back(fault);
  }
  // Needs a rank of host1 that is killed, and a loss of power after it.
  const auto play = [](const Schedule& shorter) {
    Outcome outcome;
    const auto& faults = shorter.faults;
    const auto of = [&](Fault::Kind kind) {
      return std::find_if(faults.begin(), faults.end(),
                          [&](const Fault& f) { return f.kind == kind; });
    };
    const auto kill = of(Fault::kKillRank);
    if (kill != faults.end() && of(Fault::kPowerCut) > kill &&
        of(Fault::kPowerCut) != faults.end() && shorter.steps >= 3) {
      outcome.kind = "whole";
    }
    return outcome;
  };
  const Schedule shortest = Shrink(schedule, "whole", play);
  ASSERT_THAT(shortest.faults, SizeIs(2));
  EXPECT_EQ(shortest.faults[0].kind, Fault::kKillRank);
  EXPECT_EQ(shortest.faults[1].kind, Fault::kPowerCut);
  EXPECT_EQ(shortest.hosts, 2);
  EXPECT_EQ(shortest.ranks_per_host, 1);
  EXPECT_EQ(shortest.steps, 3);
}

}  // namespace
}  // namespace capstan::sim
