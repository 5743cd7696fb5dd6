// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/agree.h"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <vector>

#include "trainer/process_group/collectives_for_test.h"
#include "trainer/process_group/ranks_for_test.h"

namespace capstan {
namespace {

class AgreeTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, AgreeTest, testing::Values("shm", "gloo"));

TEST_P(AgreeTest, OnAnError) {
  const auto check = [](ProcessGroup* group) {
    Require(Agree(*group, absl::OkStatus(), "start").ok(), "all are OK");
    const bool fails = group->rank() == 1;
    const absl::Status mine =
        fails ? absl::NotFoundError("mine") : absl::OkStatus();
    const absl::Status all = Agree(*group, mine, "start");
    Require(all == (fails ? mine
                          : absl::UnavailableError("rank 1 could not start")),
            all.ToString());
    const absl::Status named = Agree(*group, mine, [](int rank) {
      return "write file " + std::to_string(rank);
    });
    Require(fails || named.message() == "rank 1 could not write file 1",
            named.ToString());
  };
  EXPECT_EQ(RunRanks(GetParam(), 3, check), 0);
}

TEST_P(AgreeTest, OnNumbers) {
  const auto check = [](ProcessGroup* group) {
    Require(FromAllRanks(*group, 10.0 + group->rank()) ==
                std::vector<double>({10.0, 11.0, 12.0}),
            "numbers");
    Require(*AnyRank(*group, group->rank() == 2), "any");
    Require(!*AnyRank(*group, false), "none");
  };
  EXPECT_EQ(RunRanks(GetParam(), 3, check), 0);
}

// An output folder's path was once cut at 4,095 bytes.
TEST_P(AgreeTest, OnATextOfAnyLength) {
  const auto check = [](ProcessGroup* group) {
    for (const size_t length : {0, 1, 4095, 4096, 70000}) {
      std::string text(length, 'a');
      for (size_t i = 0; i < length; ++i) text[i] = 'a' + i % 23;
      const auto got =
          FromRank0(*group, group->rank() == 0 ? text : "another one");
      Require(got.ok() && *got == text, std::to_string(length));
    }
  };
  EXPECT_EQ(RunRanks(GetParam(), 2, check), 0);
}

// How many of `rounds` rounds are started if rank `fails` fails in round `in`
// (-1: none does).
int Rounds(ProcessGroup* group, StopPoll* poll, int rounds, int fails, int in) {
  for (int round = 0; round < rounds; ++round) {
    if (poll->Ask()) return round;
    if (group->rank() == fails && round == in) {
      Require(poll->Leave(/*failed=*/true), "it knows that it failed");
      return round + 1;
    }
  }
  Require(poll->Leave(/*failed=*/false) == (fails >= 0), "who failed");
  return rounds;
}

TEST_P(AgreeTest, ARankThatFailsStopsTheOthers) {
  const auto check = [](ProcessGroup* group) {
    for (const int fails : {0, 1}) {
      for (const int in : {0, 3, 6}) {
        StopPoll poll(group, StopPoll::Votes::kEveryRound);
        const int done = Rounds(group, &poll, /*rounds=*/7, fails, in);
        Require(done == in + 1, "rounds: " + std::to_string(done));
        Require(group->rank() == fails || poll.Leave(false), "all know");
        Require(poll.Ask(), "it stays so");
      }
    }
    StopPoll poll(group, StopPoll::Votes::kEveryRound);
    Require(Rounds(group, &poll, 7, -1, -1) == 7, "without a failure");
    // All ranks are at the same next collective.
    Require(FromAllRanks(*group, 1.0).size() == 2, "after all");
  };
  EXPECT_EQ(RunRanks(GetParam(), 2, check), 0);
}

TEST(CatchAllTest, MakesAStatusOfAnException) {
  EXPECT_TRUE(absl::IsResourceExhausted(
      CatchAll([]() -> absl::Status { throw std::bad_alloc(); })));
  EXPECT_TRUE(absl::IsUnavailable(
      CatchAll([]() -> absl::Status { throw CommunicationError("lost"); })));
  EXPECT_TRUE(CatchAll([] { return absl::OkStatus(); }).ok());
}

}  // namespace
}  // namespace capstan
