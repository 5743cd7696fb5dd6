// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/comm/collectives_for_test.h"
#include "cluster/comm/create.h"
#include "cluster/comm/ranks_for_test.h"
#include "cluster/launch/launcher.h"
#include "cluster/meet/rendezvous.h"

namespace capstan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Backend and number of ranks.
class GroupTest : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  int Run(const RankCheck& check) {
    return RunRanks(backend(), ranks(), check);
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, GroupTest,
                         testing::Combine(testing::Values("shm", "gloo"),
                                          testing::Values(2, 3, 4)));

TEST_P(GroupTest, Collectives) {
  const int exit_code = Run([&](ProcessGroup* group) {
    Require(group->size() == ranks(), "size");
    Require(group->backend() == backend(), "backend");
    Require(group->device().is_cpu(), "device");
    for (at::ScalarType dtype :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong,
          at::kInt, at::kChar, at::kByte}) {
      for (int64_t size : {1, 5, 17, 40009}) {
        CheckCollectives(group, dtype, size);
      }
    }
    CheckCollectives(group, at::kFloat, 300001);
    CheckCollectives(group, at::kBFloat16, 300001);
    CheckOverlap(group);
    CheckCollectives(group, at::kFloat, 0);
  });
  EXPECT_EQ(exit_code, 0);
}

TEST_P(GroupTest, AllReduceHostIsBitIdentical) {
  const int exit_code = Run([](ProcessGroup* group) {
    const int n = group->size();
    // Sums of these depend on the order of the additions.
    std::vector<double> values = {0.1 * (group->rank() + 1), 1e16, 1.0 / 3,
                                  group->rank() == 1 ? NAN : 0.0};
    values[1] *= group->rank() == 0 ? -1 : 1;
    std::vector<double> expected_sum = {0.1 * n * (n + 1) / 2};
    group->AllReduceHost(absl::MakeSpan(values));
    Require(std::abs(values[0] - expected_sum[0]) < 1e-12, "sum");
    Require(std::isnan(values[3]), "NaN");

    const at::Tensor mine = at::empty({4}, at::kLong);
    std::memcpy(mine.data_ptr(), values.data(), 4 * sizeof(double));
    const at::Tensor all = at::empty({4 * n}, at::kLong);
    group->AllGather(all, mine)->Wait();
    for (int i = 0; i < n; ++i) {
      Require(all.slice(0, 4 * i, 4 * i + 4).equal(mine), "bits");
    }
  });
  EXPECT_EQ(exit_code, 0);
}

TEST_P(GroupTest, CountsBytes) {
  const int exit_code = Run([](ProcessGroup* group) {
    const int n = group->size();
    const at::Tensor whole = at::full({60}, 1, at::kFloat);  // 240 bytes
    const at::Tensor part = at::full({60 / n}, 1, at::kFloat);
    Require(group->stats().bytes_sent == 0, "nothing sent yet");
    group->AllReduce(whole)->Wait();
    Require(group->stats().bytes_sent == 2 * 240 * (n - 1) / n, "all-reduce");
    group->ReduceScatter(part, whole)->Wait();
    group->AllGather(whole, part)->Wait();
    Require(group->stats().bytes_sent == 4 * 240 * (n - 1) / n,
            "the same in two");
    group->Broadcast(whole, 1)->Wait();
    const int64_t more = group->rank() == 1 ? 240 : 0;
    Require(group->stats().bytes_sent == 4 * 240 * (n - 1) / n + more,
            "broadcast");
  });
  EXPECT_EQ(exit_code, 0);
}

double SecondsOf(const std::function<void()>& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Three all-reduces at once, with a rest of `late` seconds before they start
// and another one before they are waited for; what they add to the group's
// times.
CommunicationStats AllReduceThree(ProcessGroup* group, double late) {
  const CommunicationStats before = group->stats();
  const double seconds = SecondsOf([&] {
    // sleeps: the time that is counted
    usleep(static_cast<useconds_t>(1e6 * late));
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < 3; ++i) {
      tensors.push_back(at::full({100000}, 1, at::kFloat));
      works.push_back(group->AllReduce(tensors.back()));
    }
    // sleeps: the time that is counted
    usleep(static_cast<useconds_t>(1e6 * late));
    for (const auto& work : works) work->Wait();
  });
  CommunicationStats stats = group->stats();
  stats.busy_seconds -= before.busy_seconds;
  stats.exposed_seconds -= before.exposed_seconds;
  Require(stats.busy_seconds > 0, "something was done");
  // Three at once count once.
  Require(stats.busy_seconds <= seconds, "no more than the whole time");
  Require(stats.exposed_seconds <= seconds, "no more than the whole time");
  return stats;
}

// "" if the times are what such rests make of them, with room for what a busy
// machine does.
std::string WrongTimes(ProcessGroup* group, double late) {
  const double half = late / 2;
  const bool is_late = group->rank() == 1;
  const CommunicationStats hidden = AllReduceThree(group, late);
  const CommunicationStats stats = AllReduceThree(group, is_late ? late : 0);
  if (hidden.busy_seconds > half) return "not over long before Wait";
  if (hidden.exposed_seconds > half) return "not hidden";
  if ((stats.exposed_seconds < half) != is_late) {
    return is_late ? "the late rank waits" : "doesn't wait for rank 1";
  }
  if (!is_late && stats.busy_seconds < half) return "not busy meanwhile";
  return "";
}

// Collectives progress while nobody waits for them, and count as busy
// meanwhile. A rank that doesn't get to run in time spoils a try: the next
// one's rests are longer.
TEST_P(GroupTest, TellsBusyFromExposed) {
  const int exit_code = Run([](ProcessGroup* group) {
    std::string wrong;
    for (double late = 0.2; late < 10; late *= 2) {
      wrong = WrongTimes(group, late);
      double spoilt = wrong.empty() ? 0 : 1;
      group->AllReduceHost(absl::MakeSpan(&spoilt, 1));
      if (spoilt == 0) return;
    }
    Require(false, "in all tries: " + wrong);
  });
  EXPECT_EQ(exit_code, 0);
}

class EndTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, EndTest, testing::Values("shm", "gloo"));

// Exiting right after a collective must not break it for the others.
TEST_P(EndTest, LeavesInOrder) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(RunRanks(GetParam(), 2,
                       [](ProcessGroup* group) {
                         std::vector<double> values = {1, 2, 3};
                         group->AllReduceHost(absl::MakeSpan(values));
                       }),
              0);
  }
}

TEST_P(EndTest, AKilledRankIsTheCauseAndTheOthersEnd) {
  std::string text;
  const int exit_code = RunRanks(
      GetParam(), 2,
      [](ProcessGroup* group) {
        std::vector<double> values = {1};
        for (int step = 0;; ++step) {
          if (group->rank() == 1 && step == 100) raise(SIGKILL);
          group->AllReduceHost(absl::MakeSpan(values));
        }
      },
      &text);
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(text, HasSubstr("ERROR: [rank 1] killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(text, Not(HasSubstr("lost the connection")));
}

TEST_P(EndTest, AVanishedPeerIsACommunicationError) {
  std::string text;
  const int exit_code = RunRanks(
      GetParam(), 2,
      [](ProcessGroup* group) {
        if (group->rank() == 1) {
          throw std::invalid_argument("sample 3 is broken");
        }
        try {
          group->AllReduce(at::full({10}, 1, at::kFloat))->Wait();
        } catch (const CommunicationError& e) {
          fprintf(stderr, "%s\n", e.what());
          throw;
        }
      },
      &text);
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(text, HasSubstr("[rank 0] rank 0 lost the connection to another "
                              "rank during all-reduce: "));
  EXPECT_THAT(text, HasSubstr("ERROR: [rank 1] sample 3 is broken\n"));
  EXPECT_THAT(text, Not(HasSubstr("ERROR: [rank 0]")));
}

// A rank that fails with a pending collective, which its peer never joins, must
// still report its error.
TEST_P(EndTest, FailsAtOnceWithACollectiveUnderWay) {
  std::string text;
  const int exit_code = RunRanks(
      GetParam(), 2,
      [](ProcessGroup* group) {
        if (group->rank() == 1) {
          const auto work = group->AllReduce(at::full({10}, 1, at::kFloat));
          throw std::invalid_argument("sample 3 is broken");
        }
        while (true) pause();
      },
      &text);
  EXPECT_EQ(exit_code, 1);
  EXPECT_EQ(text, "ERROR: [rank 1] sample 3 is broken\n");
}

// Sums 1 over the ranks of `info`'s run.
absl::Status JoinAndSum(const RankInfo& info) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                           CreateProcessGroup(info, 0));
  std::vector<double> values = {1};
  group->AllReduceHost(absl::MakeSpan(values));
  Require(values[0] == info.world_size, "sum");
  return absl::OkStatus();
}

// Under a launcher that only sets the environment: rank 0 serves, and may join
// last.
TEST(Rendezvous, Rank0ServesWithoutASocketOfOurs) {
  const int exit_code = LaunchRanks(2, [](RankInfo info) {
    if (info.rank == 0) {
      close(info.listen_fd);
      info.listen_fd = -1;
      usleep(200000);
    }
    return JoinAndSum(info);
  });
  EXPECT_EQ(exit_code, 0);
}

// Under torchrun, whose agent's store tells where rank 0 is. The launcher's
// rank 0 plays the agent here.
TEST(Rendezvous, ByTorchrunsAgent) {
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const int exit_code = LaunchRanks(3, [&](RankInfo info) {
    if (info.rank == 0) {
      c10d::TCPStoreOptions options;
      options.isServer = true;
      options.port = info.master_port;
      options.masterListenFd = info.listen_fd;
      options.waitWorkers = false;
      const c10d::TCPStore agent("127.0.0.1", options);
      char byte;
      for (int rank = 0; rank < 2; ++rank) {
        Require(read(done[0], &byte, 1) == 1, "a rank is done");
      }
      return absl::OkStatus();
    }
    info.agent_store = true;
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    info.rank -= 1;
    info.world_size = 2;
    const absl::Status status = JoinAndSum(info);
    Require(write(done[1], "d", 1) == 1, "write");
    return status;
  });
  EXPECT_EQ(exit_code, 0);
  close(done[0]);
  close(done[1]);
}

// What a rank of torchrun's can't do it says before it joins, as the others
// would count on it; and who waits says for whom.
TEST(Rendezvous, TorchrunsRanksCheckFirst) {
  const int exit_code = LaunchRanks(1, [](RankInfo info) {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.port = info.master_port;
    options.masterListenFd = info.listen_fd;
    options.waitWorkers = false;
    const c10d::TCPStore agent("127.0.0.1", options);
    // The agent's; torchrun hands none to its ranks.
    info.listen_fd = -1;
    info.agent_store = true;
    info.world_size = 2;
    info.nodes = 2;
    info.local_world_size = 1;
    RankInfo wrong = info;
    wrong.rank = 1;
    wrong.interface = "no-such-0";
    absl::Status status = Meet(wrong, std::chrono::minutes(5)).status();
    Require(absl::IsFailedPrecondition(status), status.ToString());
    testing::internal::CaptureStderr();
    status = Meet(info, std::chrono::seconds(7)).status();
    const std::string text = testing::internal::GetCapturedStderr();
    Require(absl::StrContains(status.message(),
                              "only 1 of 2 ranks came; missing: 1"),
            status.ToString());
    Require(absl::StrContains(text, "waiting for the other ranks at ") &&
                absl::StrContains(text, " (rank 1 is missing)"),
            text);
    wrong.interface.clear();
    status = Meet(wrong, std::chrono::seconds(1)).status();
    Require(absl::StrContains(
                status.message(),
                absl::StrCat("rank 1 waited 1 s for rank 0 by torchrun's agent "
                             "at 127.0.0.1:",
                             info.master_port)),
            status.ToString());
    return absl::OkStatus();
  });
  EXPECT_EQ(exit_code, 0);
}

TEST(Rendezvous, NamesTheMissingRanks) {
  const int exit_code = LaunchRanks(1, [](RankInfo info) {
    info.world_size = 3;
    const absl::Status status =
        Meet(info, std::chrono::milliseconds(1000)).status();
    Require(absl::IsUnavailable(status), status.ToString());
    const std::string message(status.message());
    Require(message == absl::StrCat(
                           "rank 0 waited 1 s at 127.0.0.1:", info.master_port,
                           ": only 1 of 3 ranks came; missing: 1, 2"),
            message);
    return absl::OkStatus();
  });
  EXPECT_EQ(exit_code, 0);
}

TEST(SingleGroup, IsTheIdentity) {
  RankInfo info;
  const auto group = CreateProcessGroup(info, 0);
  ASSERT_TRUE(group.ok());
  EXPECT_EQ((*group)->backend(), "none");
  EXPECT_EQ((*group)->size(), 1);
  CheckCollectives(group->get(), at::kFloat, 7);
  const at::Tensor same = at::full({4}, 3, at::kFloat);
  (*group)->AllGather(same, same)->Wait();
  EXPECT_EQ((*group)->stats().bytes_sent, 0);
}

// Said by the rank whose environment it is, before the others wait for it.
TEST(CreateProcessGroup, VariablesThatAreWrongOnOneRank) {
  const auto fail = [](const std::string& name, const std::string& value) {
    std::string text;
    const int code = WithErrors(
        [&] {
          return LaunchRanks(2, [&](const RankInfo& info) {
            setenv("CAPSTAN_CPU_COLLECTIVES", "gloo", 1);
            if (info.rank == 1) setenv(name.c_str(), value.c_str(), 1);
            return CreateProcessGroup(info, 0).status();
          });
        },
        &text);
    EXPECT_EQ(code, 1) << name;
    return text;
  };
  EXPECT_THAT(fail("GLOO_SOCKET_IFNAME", "none0"),
              AllOf(HasSubstr("ERROR: [rank 1] environment variable "
                              "GLOO_SOCKET_IFNAME is \"none0\""),
                    HasSubstr("it has ")));
  EXPECT_THAT(fail("CAPSTAN_CPU_COLLECTIVES", "nonsense"),
              HasSubstr("ERROR: [rank 1] environment variable "
                        "CAPSTAN_CPU_COLLECTIVES must be shm or gloo, is "
                        "\"nonsense\""));
}

TEST(CreateProcessGroup, SaysWhyThereIsNoGpu) {
  RankInfo info;
  info.local_rank = 2;
  const absl::Status status = CreateProcessGroup(info, 2).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 2 GPUs"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("CUDA_VISIBLE_DEVICES="));
}

}  // namespace
}  // namespace capstan
