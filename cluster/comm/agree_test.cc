// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/agree.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/lost_peer.h"
#include "cluster/comm/collectives_for_test.h"
#include "cluster/comm/ranks_for_test.h"
#include "cluster/launch/launcher.h"

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
    Require(all == (fails ? mine : LostPeerError("rank 1 could not start")),
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
    Require(FromAllRanks(*group, std::string(group->rank(), 'a') + "\xff") ==
                std::vector<std::string>({"\xff", "a\xff", "aa\xff"}),
            "texts");
    Require(FromAllRanks(*group, std::string()).size() == 3, "no texts");
    Require(*AnyRank(*group, group->rank() == 2), "any");
    Require(!*AnyRank(*group, false), "none");
  };
  EXPECT_EQ(RunRanks(GetParam(), 3, check), 0);
}

// A sum of doubles would round these.
TEST_P(AgreeTest, OnBytes) {
  const auto check = [](ProcessGroup* group) {
    struct Item {
      int64_t number;
      char letter;
    };
    constexpr int64_t kLarge = (int64_t{1} << 62) + 1;
    const auto rank = static_cast<char>(group->rank());
    const std::vector<Item> all = AllGatherHost(
        *group, std::vector<Item>{{kLarge + rank, rank}, {-rank, 'x'}});
    Require(all.size() == 6, "two of each rank");
    for (char r = 0; r < 3; ++r) {
      const Item& first = all[2 * r];
      const Item& second = all[2 * r + 1];
      Require(first.number == kLarge + r && first.letter == r, "first");
      Require(second.number == -r && second.letter == 'x', "second");
    }
    Require(AllGatherHost(*group, std::vector<Item>()).empty(), "nothing");
  };
  EXPECT_EQ(RunRanks(GetParam(), 3, check), 0);
}

// Ranks of one host, and of three.
class PhaseTest : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Hosts, PhaseTest,
                         testing::Values(std::vector<int>{0, 0, 0, 0},
                                         std::vector<int>{0, 0, 1, 2},
                                         std::vector<int>{0, 1, 1, 0}));

// A rank that fails comes straight to the end of the phase; the others are in
// collectives of the group and its parts, which differ and can't be completed.
TEST_P(PhaseTest, AnErrorEndsTheOthersCollectives) {
  const auto check = [](ProcessGroup* group) {
    const auto part = group->Split(group->rank() % 2);
    // Ends the phase: the first to fail below would end slower ranks' Split.
    Require(Agree(*group, part.status(), "split").ok(), "split");
    const int rank = group->rank();
    for (int round = 0; round < 6; ++round) {
      const int fails = round % group->size();
      const at::Tensor large = at::full({3000000}, 1, at::kFloat);
      std::unique_ptr<Work> forgotten;
      const absl::Status mine = CatchAll([&]() -> absl::Status {
        if (rank == fails) return absl::ResourceExhaustedError("no memory");
        if (round % 2 == 0) forgotten = group->AllReduce(large);
        for (int i = 0; i < 1000000; ++i) {
          (rank + round) % 3 == 0 ? (*part)->AllReduce(large)->Wait()
                                  : group->AllReduce(large)->Wait();
        }
        return absl::OkStatus();
      });
      const absl::Status all = Agree(*group, mine, "start");
      Require(all == (rank == fails ? mine
                                    : LostPeerError(absl::StrCat(
                                          "rank ", fails, " could not start"))),
              all.ToString());
      // As new.
      for (ProcessGroup* const used : {group, part->get()}) {
        const at::Tensor ones = at::full({300000}, 1, at::kFloat);
        used->AllReduce(ones)->Wait();
        Require(ones.eq(used->size()).all().item<bool>(), "sums");
        Require(
            FromAllRanks(*used, 1.0) == std::vector<double>(used->size(), 1.0),
            "numbers");
      }
      Require(Agree(*group, absl::OkStatus(), "go on").ok(), "go on");
    }
  };
  EXPECT_EQ(RunHosts(GetParam(), check), 0);
}

// Of two that fail, both know their own; all name the same.
TEST_P(PhaseTest, MayBreakOffAndGoOn) {
  const auto check = [](ProcessGroup* group) {
    const int rank = group->rank();
    std::vector<double> nine(9);
    for (const int fails : {1, 3, -1}) {
      absl::Status mine;
      std::unique_ptr<Work> begun;
      const at::Tensor large = at::full({300000}, 1, at::kFloat);
      if (rank == fails) {
        mine = absl::ResourceExhaustedError("no memory");
      } else if (fails >= 0) {
        mine = CatchAll([&] {
          begun = group->AllReduce(large);
          group->AllReduceHost(absl::MakeSpan(nine));
          return absl::OkStatus();
        });
      }
      bool finished = false;
      const absl::StatusOr<bool> broke_off = BrokeOff(*group, mine, "try", [&] {
        if (begun != nullptr) begun->Wait();
        group->AllReduce(large)->Wait();
        group->AllReduceHost(absl::MakeSpan(nine));
        finished = true;
      });
      Require(broke_off.ok(), broke_off.status().ToString());
      Require(*broke_off == (fails >= 0) && finished == (fails >= 0), "broke");
      Require(FromAllRanks(*group, 1.0) == std::vector<double>(4, 1.0), "sums");
      // The next failure is of another phase: else it may end these sums, too,
      // on ranks that are slower than the one that fails.
      Require(Agree(*group, absl::OkStatus(), "go on").ok(), "go on");
    }
    const auto fails = [&] { throw std::bad_alloc(); };
    const absl::Status mine =
        rank == 2 ? absl::InternalError("x") : LostPeerError("ended");
    if (rank != 2) {
      CatchAll([&] {
        group->AllReduceHost(absl::MakeSpan(nine));
        return absl::OkStatus();
      }).IgnoreError();
    }
    Require(!BrokeOff(*group, mine, "try", fails).ok(), "no way to go on");
  };
  EXPECT_EQ(RunHosts(GetParam(), check), 0);
}

// The next failure comes while the other hosts' leaders are about to connect
// anew with the one that fails: they once waited for it for five minutes.
TEST_P(PhaseTest, AnErrorEndsTheOthersConnecting) {
  const auto check = [](ProcessGroup* group) {
    for (const int fails : {0, 0, 1, 2, 2}) {
      const absl::Status mine = CatchAll([&]() -> absl::Status {
        if (group->rank() == fails) {
          usleep(300000);
          return absl::ResourceExhaustedError("no memory");
        }
        FromAllRanks(*group, 1.0);
        return absl::OkStatus();
      });
      const absl::Status all = Agree(*group, mine, "start");
      Require(all == (group->rank() == fails
                          ? mine
                          : LostPeerError(absl::StrCat("rank ", fails,
                                                       " could not start"))),
              all.ToString());
    }
    Require(FromAllRanks(*group, 1.0) == std::vector<double>(4, 1.0), "sums");
  };
  EXPECT_EQ(RunHosts(GetParam(), check), 0);
}

// Both were UNAVAILABLE, and the first that came was taken for the cause.
TEST(LostPeerTest, IsNotWhatAFileOrNetworkLacks) {
  std::string text;
  const int exit_code = WithErrors(
      [] {
        return LaunchRanks(3, [](const RankInfo& info) -> absl::Status {
          if (info.rank == 1) {
            usleep(200000);
            return absl::UnavailableError("no locks available");
          }
          return LostPeerError("rank 1 has left the run");
        });
      },
      &text);
  EXPECT_EQ(exit_code, 1);
  EXPECT_EQ(text, "ERROR: [rank 1] no locks available\n");
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

// The kernel's SIGXCPU comes to ranks at different times.
TEST_P(AgreeTest, TheSignalOfOneRankIsThatOfAll) {
  const auto check = [](ProcessGroup* group) {
    Require(AgreeOrStop(*group, StopStatus(), "go on").ok(), "none has come");
    if (group->rank() == 1) AdoptStop(SIGXCPU);
    Require(absl::IsCancelled(AgreeOrStop(*group, StopStatus(), "go on")),
            "it stops all");
    Require(StopRequested() == SIGXCPU,
            "which signal: " + std::to_string(StopRequested()));
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
