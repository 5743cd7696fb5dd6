// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/collectives_for_test.h"
#include "cluster/comm/ranks_for_test.h"
#include "cluster/comm/shm/shm_meeting.h"

namespace capstan {
namespace {

using testing::HasSubstr;

class ShmTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmTest, testing::Values(2, 3, 4));

// Different on each rank, so that the summation order matters.
at::Tensor Values(int rank, int64_t size) {
  const at::Tensor x = at::arange(size, at::kDouble).add(0.37 * rank);
  return x.mul(12.9898)
      .sin()
      .mul(x.mul(0.771).cos().mul(20).exp())
      .to(at::kFloat);
}

// The sum of the values of ranks [begin, end) along the tree of shm_sum.h.
at::Tensor Tree(int begin, int end, int64_t size) {
  if (end - begin == 1) return Values(begin, size);
  int left = 1;
  while (2 * left < end - begin) left *= 2;
  return Tree(begin, begin + left, size).add(Tree(begin + left, end, size));
}

// Bit-exact small sums, sums over several blocks, and partial sums.
TEST_P(ShmTest, AddsAlongATreeOverTheRanks) {
  EXPECT_EQ(RunRanks("shm", GetParam(),
                     [](ProcessGroup* group) {
                       const int n = group->size();
                       for (const int64_t m : {100, 5001, 333333}) {
                         const at::Tensor want = Tree(0, n, m * n);
                         const at::Tensor mine = Values(group->rank(), m * n);
                         const at::Tensor part = at::empty({m}, at::kFloat);
                         group->ReduceScatter(part, mine)->Wait();
                         RequireEqual(part,
                                      want.narrow(0, group->rank() * m, m),
                                      absl::StrCat("part of ", m));
                         group->AllReduce(mine)->Wait();
                         RequireEqual(mine, want, absl::StrCat("whole ", m));
                       }
                     }),
            0);
}

// Ranks of different speeds: slots must not be overwritten before they are
// read.
TEST_P(ShmTest, WaitsForSlowReaders) {
  EXPECT_EQ(
      RunRanks("shm", GetParam(),
               [](ProcessGroup* group) {
                 const int n = group->size();
                 const int64_t size = 3 * kShmSlots * kShmSlotBytes / 4 + 5;
                 for (int round = 0; round < 20; ++round) {
                   // sleeps: each rank is late in turn
                   if (round % n == group->rank()) usleep(2000);
                   const at::Tensor told =
                       at::full({size}, 100 * round + group->rank(), at::kInt);
                   const at::Tensor all = at::empty({n * 5003}, at::kInt);
                   const auto first = group->Broadcast(told, round % n);
                   const auto second = group->AllGather(
                       all, at::full({5003}, group->rank(), at::kInt));
                   first->Wait();
                   second->Wait();
                   Require(told.eq(100 * round + round % n).all().item<bool>(),
                           absl::StrCat("broadcast ", round));
                   for (int i = 0; i < n; ++i) {
                     Require(
                         all.narrow(0, i * 5003, 5003).eq(i).all().item<bool>(),
                         absl::StrCat("all-gather ", round));
                   }
                 }
               }),
      0);
}

// They once exchanged garbage.
TEST(Shm, RanksThatCallDifferentCollectivesAreTold) {
  struct Case {
    std::function<void(ProcessGroup*, int rank)> call;
    const char* want;
  };
  const auto all_reduce = [](ProcessGroup* group, int64_t size) {
    group->AllReduce(at::full({size}, 1, at::kFloat))->Wait();
  };
  const auto all_gather = [](ProcessGroup* group, int64_t size) {
    group
        ->AllGather(at::empty({3 * size}, at::kFloat),
                    at::full({size}, 1, at::kFloat))
        ->Wait();
  };
  const std::vector<Case> cases = {
      {[&](ProcessGroup* group, int rank) {
         all_reduce(group, rank == 2 ? 900 : 1000);
       },
       "rank 2 calls all-reduce of 900 float32 as its collective 2, rank 0 "
       "all-reduce of 1000 float32 as its collective 2: "},
      // Of several blocks.
      {[&](ProcessGroup* group, int rank) {
         all_reduce(group, rank == 0 ? 900 : 10000000);
       },
       "rank 1 calls all-reduce of 10000000 float32 as its collective 2, "
       "rank 0 all-reduce of 900 float32 as its collective 2: "},
      {[&](ProcessGroup* group, int rank) {
         if (rank == 1) return all_gather(group, 900);
         all_reduce(group, 900);
       },
       "rank 1 calls all-gather of 3600 bytes as its collective 2, rank 0 "
       "all-reduce of 900 float32 as its collective 2: "},
      {[&](ProcessGroup* group, int rank) {
         group->Broadcast(at::full({9}, 1, at::kFloat), rank == 2 ? 1 : 0)
             ->Wait();
       },
       "rank 2 calls broadcast of 36 bytes from its rank 1 as its collective "
       "2, rank 0 broadcast of 36 bytes from its rank 0 as its collective 2: "},
      {[&](ProcessGroup* group, int rank) {
         if (rank == 1) all_reduce(group, 0);
         group->AllReduce(at::full({9}, 1, rank == 1 ? at::kInt : at::kFloat))
             ->Wait();
       },
       "rank 1 calls all-reduce of 9 int as its collective 2, rank 0 "
       "all-reduce of 9 float32 as its collective 2: "},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(RunRanks("shm", 3,
                       [&](ProcessGroup* group) {
                         const absl::Status status = CatchAll([&] {
                           c.call(group, group->rank());
                           return absl::OkStatus();
                         });
                         Require(absl::IsInternal(status) &&
                                     absl::StartsWith(status.message(), c.want),
                                 status.ToString());
                       }),
              0);
  }
}

TEST(Shm, LeavesNoFileOpen) {
  EXPECT_EQ(
      RunRanks(
          "shm", 2,
          [](ProcessGroup* group) {
            auto split = group->Split(0);
            Require(split.ok(), "split");
            DIR* const folder = opendir("/proc/self/fd");
            while (const dirent* entry = readdir(folder)) {
              char target[256] = {};
              if (readlink(
                      absl::StrCat("/proc/self/fd/", entry->d_name).c_str(),
                      target, sizeof(target) - 1) < 0) {
                continue;
              }
              Require(!absl::StrContains(target, "memfd:"), target);
            }
            closedir(folder);
          }),
      0);
}

// If some ranks want Gloo, all get it.
TEST(Shm, IsForAllOrNone) {
  EXPECT_EQ(LaunchRanks(3,
                        [](const RankInfo& info) -> absl::Status {
                          unsetenv("CAPSTAN_CPU_COLLECTIVES");
                          if (info.rank == 1) {
                            setenv("CAPSTAN_CPU_COLLECTIVES", "gloo", 1);
                          }
                          CAPSTAN_ASSIGN_OR_RETURN(const auto group,
                                                   CreateProcessGroup(info, 0));
                          Require(group->backend() == "gloo", "backend");
                          CheckCollectives(group.get(), at::kFloat, 17);
                          return absl::OkStatus();
                        }),
            0);
}

// Requires that a rank waiting in `collective` notices that rank 1 is gone.
void RequireError(const std::function<void()>& collective,
                  const std::string& what) {
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    collective();
  } catch (const CommunicationError& e) {
    message = e.what();
  }
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - begin;
  Require(absl::StrContains(message, what), absl::StrCat("told: ", message));
  // At once; on a busy machine, too.
  Require(time.count() < 30, absl::StrCat("after ", time.count(), " s"));
  fprintf(stderr, "%s\n", message.c_str());
}

TEST_P(ShmTest, NoticesAKilledRankInTheMiddle) {
  std::string text;
  const int exit_code = RunRanks(
      "shm", GetParam(),
      [](ProcessGroup* group) {
        const at::Tensor tensor = at::full({8 << 20}, 1, at::kFloat);
        const auto work = group->AllReduce(tensor);
        if (group->rank() == 1) raise(SIGKILL);
        RequireError(
            [&] {
              work->Wait();
              // It may complete before the signal.
              group->AllReduce(tensor)->Wait();
            },
            " lost the connection to another rank during all-reduce: rank ");
        // So does every later one.
        RequireError([&] { group->AllReduce(tensor)->Wait(); }, "all-reduce");
        usleep(200000);
      },
      &text);
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(text, HasSubstr("ERROR: [rank 1] killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(text, HasSubstr("rank 0 lost the connection to another rank "
                              "during all-reduce: rank "));
}

// A rank whose process continues (saving, logging) but whose group is closed.
TEST_P(ShmTest, NoticesARankThatHasLeft) {
  OthersEnd others;
  EXPECT_EQ(LaunchRanks(GetParam(),
                        [&](const RankInfo& info) -> absl::Status {
                          CAPSTAN_ASSIGN_OR_RETURN(auto group,
                                                   CreateProcessGroup(info, 0));
                          if (info.rank == 1) {
                            const auto work =
                                group->AllReduce(at::full({1}, 1, at::kDouble));
                            group.reset();
                            others.Await(info.world_size - 1);
                            return absl::OkStatus();
                          }
                          // Either outcome is right, depending on when rank 1
                          // left.
                          RequireError(
                              [&] {
                                double value = 1;
                                group->AllReduceHost(absl::MakeSpan(&value, 1));
                                group->AllReduceHost(absl::MakeSpan(&value, 1));
                              },
                              "rank ");
                          others.Tell();
                          return absl::OkStatus();
                        }),
            0);
}

TEST(ShmSegment, RefusesWhatIsNotItsOwn) {
  auto segment = ShmSegment::Create(2);
  ASSERT_TRUE(segment.ok());
  const std::string address = (*segment)->address();
  ASSERT_TRUE(ShmSegment::Open(address, 2).ok());
  EXPECT_FALSE(ShmSegment::Open(address, 3).ok());
  EXPECT_FALSE(ShmSegment::Open(address, 2, 1).ok());
  EXPECT_FALSE(ShmSegment::Open(address + "1", 2).ok());
  EXPECT_FALSE(ShmSegment::Open("1", 2).ok());
  EXPECT_FALSE(ShmSegment::Open("", 2).ok());
  (*segment)->CloseFile();
  EXPECT_FALSE(ShmSegment::Open(address, 2).ok());
}

TEST(ShmSegment, IsOneMemory) {
  auto one = ShmSegment::Create(3, 2);
  ASSERT_TRUE(one.ok());
  auto other = ShmSegment::Open((*one)->address(), 3, 2);
  ASSERT_TRUE(other.ok());
  (*one)->state(2)->done[kTaken] = 7;
  EXPECT_EQ((*other)->state(2)->done[kTaken], 7);
  char* const last = (*one)->slot(2, kShmSlots - 1) + kShmSlotBytes - 1;
  *last = 'x';
  EXPECT_EQ((*other)->slot(2, 2 * kShmSlots - 1)[kShmSlotBytes - 1], 'x');
  char* const buffer = (*one)->buffer(1, 3) + kShmSlotBytes - 1;
  *buffer = 'y';
  EXPECT_EQ((*other)->buffer(1, kShmSlots + 3)[kShmSlotBytes - 1], 'y');
  EXPECT_EQ(*last, 'x');
}

// Two ranks of one process: each ends the other's wait.
TEST(ShmMeeting, AwaitsAnyOfSeveral) {
  std::vector<std::unique_ptr<ShmMeeting>> ranks;
  auto first = ShmSegment::Create(2);
  ASSERT_TRUE(first.ok());
  auto second = ShmSegment::Open((*first)->address(), 2);
  ASSERT_TRUE(second.ok());
  for (auto* segment : {&first, &second}) {
    auto meeting = ShmMeeting::Create(
        *std::move(*segment), static_cast<int>(ranks.size()),
        {{4, getpid()}, {5, getpid()}}, std::chrono::minutes(1));
    ASSERT_TRUE(meeting.ok());
    ranks.push_back(*std::move(meeting));
  }
  constexpr auto kStage = static_cast<ShmStage>(63);
  std::thread other([&] {
    usleep(50000);
    ranks[1]->Publish(kStage, 3);
    EXPECT_TRUE(ranks[1]->AwaitAny({{0, kTaken, 1}}).ok());
    usleep(50000);
    ranks[1]->Leave(/*lost=*/7);
  });
  EXPECT_TRUE(ranks[0]->AwaitAny({{1, kPosted, 1}, {1, kStage, 3}}).ok());
  EXPECT_FALSE(ranks[0]->HasDone(1, kPosted, 1));
  ranks[0]->Publish(kTaken, 1);
  const absl::Status left =
      ranks[0]->AwaitAny({{1, kPosted, 1}, {1, kStage, 4}});
  other.join();
  EXPECT_EQ(left.ToString(),
            "UNAVAILABLE: rank 5, which lost rank 7, has left the run");
  // What it did before counts.
  EXPECT_TRUE(ranks[0]->AwaitAny({{1, kStage, 3}}).ok());
  ranks[0]->Stop(absl::DataLossError("enough"));
  ranks[0]->Stop();
  EXPECT_TRUE(absl::IsDataLoss(ranks[0]->AwaitAny({{1, kStage, 4}})));
}

}  // namespace
}  // namespace capstan
