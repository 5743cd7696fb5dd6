// SPDX-License-Identifier: Apache-2.0
#include "strategies/fsdp/schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan::fsdp {
namespace {

// Four units with one parameter each; the last also uses the first one's.
std::vector<GroupSpec> Groups(bool tied) {
  std::vector<GroupSpec> groups;
  for (int unit = 0; unit < 4; ++unit) {
    groups.push_back({unit, true, {unit}, {unit}, {unit}});
  }
  if (tied) {
    groups[0].forward_units = {0, 3};
    groups[0].backward_units = {3};  // an embedding
  }
  return groups;
}

// "2: free 0, gather 3; 5: ..": what is issued at each position.
std::string Text(const Schedule& schedule) {
  static const char* const kNames[] = {"free", "reserve", "gather", "reduce"};
  std::string text;
  int position = -1;
  for (const Operation& operation : schedule.operations) {
    if (operation.position != position) {
      position = operation.position;
      absl::StrAppend(&text, text.empty() ? "" : "\n", position, ":");
    }
    absl::StrAppend(&text, " ", kNames[operation.kind], operation.group);
  }
  return text;
}

TEST(ScheduleTest, GathersOneAheadAndFreesAfterUse) {
  EXPECT_EQ(Text(MakeSchedule(Groups(false), 4, {true, true, 1})),
            "0: gather0 gather1\n"
            "1: free0 gather2\n"
            "2: free1 gather3\n"
            "3: free2\n"
            "4: gather2\n"
            "5: free3 reserve3 gather1 reduce3\n"
            "6: free2 reserve2 gather0 reduce2\n"
            "7: free1 reserve1 reduce1\n"
            "8: free0 reserve0 reduce0");
}

// Computation waits for the next unit's parameters, which shall not queue up
// behind a sum; memory that the oldest sum had is free before.
TEST(ScheduleTest, GathersBeforeReductions) {
  for (int prefetch : {0, 1, 2, 3}) {
    const Schedule schedule =
        MakeSchedule(Groups(true), 4, {true, true, prefetch});
    for (size_t i = 1; i < schedule.operations.size(); ++i) {
      const Operation& before = schedule.operations[i - 1];
      const Operation& operation = schedule.operations[i];
      EXPECT_LE(before.position, operation.position);
      if (before.position == operation.position) {
        EXPECT_LE(before.kind, operation.kind) << i;
      }
    }
  }
}

TEST(ScheduleTest, WithoutPrefetch) {
  EXPECT_EQ(Text(MakeSchedule(Groups(false), 4, {true, true, 0})),
            "0: gather0\n"
            "1: free0 gather1\n"
            "2: free1 gather2\n"
            "3: free2 gather3\n"
            "5: free3 reserve3 gather2 reduce3\n"
            "6: free2 reserve2 gather1 reduce2\n"
            "7: free1 reserve1 gather0 reduce1\n"
            "8: free0 reserve0 reduce0");
}

// The tied group stays from the first forward that uses it to the last backward
// that reads it, and is reduced after its own unit's backward.
TEST(ScheduleTest, TiedGroupStays) {
  const Schedule schedule = MakeSchedule(Groups(true), 4, {true, true, 1});
  EXPECT_EQ(Text(schedule),
            "0: gather0 gather1\n"
            "1: gather2\n"
            "2: free1 gather3\n"
            "3: free2\n"
            "4: gather2\n"
            "5: free3 free0 reserve3 gather1 reduce3\n"
            "6: free2 reserve2 reduce2\n"
            "7: free1 reserve1 reduce1\n"
            "8: reserve0 reduce0");
  EXPECT_EQ(schedule.needs[3], (std::vector<int>{0, 3}));
  EXPECT_EQ(schedule.needs[7], std::vector<int>());
}

TEST(ScheduleTest, WithoutReshardingEachIsGatheredOnce) {
  EXPECT_EQ(Text(MakeSchedule(Groups(false), 4, {true, false, 1})),
            "0: gather0 gather1\n"
            "1: gather2\n"
            "2: gather3\n"
            "5: free3 reserve3 reduce3\n"
            "6: free2 reserve2 reduce2\n"
            "7: free1 reserve1 reduce1\n"
            "8: free0 reserve0 reduce0");
}

TEST(ScheduleTest, ForwardOnly) {
  EXPECT_EQ(Text(MakeSchedule(Groups(true), 4, {false, true, 1})),
            "0: gather0 gather1\n"
            "1: gather2\n"
            "2: free1 gather3\n"
            "3: free2\n"
            "4: free3 free0");
}

// Units before the first trainable parameter have no backward.
TEST(ScheduleTest, FrozenBottomIsNotGatheredForBackward) {
  std::vector<GroupSpec> groups = Groups(false);
  groups[0].trainable = groups[1].trainable = false;
  EXPECT_EQ(Text(MakeSchedule(groups, 4, {true, true, 1})),
            "0: gather0 gather1\n"
            "1: free0 gather2\n"
            "2: free1 gather3\n"
            "3: free2\n"
            "4: gather2\n"
            "5: free3 reserve3 reduce3\n"
            "6: free2 reserve2 reduce2");
}

// A prefetch deeper than the model must not gather what is still whole.
TEST(ScheduleTest, DeepPrefetchMergesUses) {
  const Schedule schedule = MakeSchedule(Groups(false), 4, {true, true, 9});
  for (int group = 0; group < 4; ++group) {
    int gathers = 0;
    for (const Operation& operation : schedule.operations) {
      gathers +=
          operation.kind == Operation::kGather && operation.group == group;
    }
    EXPECT_EQ(gathers, 1) << group;
  }
}

}  // namespace
}  // namespace capstan::fsdp
