// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/hosts_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/comm/collectives_for_test.h"
#include "cluster/comm/ranks_for_test.h"
#include "cluster/comm/shm/shm_meeting.h"

namespace capstan {
namespace {

using testing::HasSubstr;

using Hosts = std::vector<int>;

class HostsTest : public testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Placements, HostsTest,
                         testing::Values(Hosts{0, 1}, Hosts{0, 0, 1, 1},
                                         Hosts{0, 0, 0, 1}, Hosts{0, 1, 0, 1},
                                         Hosts{0, 1, 1, 0}, Hosts{0, 1, 2, 3},
                                         Hosts{0, 0, 0, 1, 1, 1, 2, 2}),
                         [](const testing::TestParamInfo<Hosts>& info) {
                           return absl::StrCat("On",
                                               absl::StrJoin(info.param, ""));
                         });

const std::vector<at::ScalarType>& AllTypes() {
  static const auto* const types = new std::vector<at::ScalarType>{
      at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong,
      at::kInt,   at::kShort,  at::kChar,     at::kByte};
  return *types;
}

TEST_P(HostsTest, Collectives) {
  EXPECT_EQ(RunHosts(GetParam(),
                     [](ProcessGroup* group) {
                       Require(group->backend() == "shm+gloo", "backend");
                       Require(group->device().is_cpu(), "device");
                       for (const at::ScalarType dtype : AllTypes()) {
                         for (const int64_t size : {1, 5, 17, 40009}) {
                           CheckCollectives(group, dtype, size);
                         }
                       }
                       CheckCollectives(group, at::kFloat, 300007);
                       CheckCollectives(group, at::kBFloat16, 300007);
                       CheckOverlap(group);
                       CheckCollectives(group, at::kFloat, 0);
                     }),
            0);
}

// Values whose sums depend on the order and on when they are rounded.
at::Tensor Values(int rank, int64_t size, at::ScalarType dtype) {
  const at::Tensor x = at::arange(size, at::kDouble).add(0.37 * rank);
  const at::Tensor wild = x.mul(12.9898).sin();
  if (!at::isFloatingType(dtype)) {
    return wild.mul(1e9).to(at::kLong).to(dtype);
  }
  const double magnitude = dtype == at::kHalf ? 4 : 20;
  return wild.mul(x.mul(0.771).cos().mul(magnitude).exp()).to(dtype);
}

// FNV-1a of a tensor's bytes.
std::string HashOf(const at::Tensor& tensor) {
  uint64_t hash = 14695981039346656037u;
  const auto* const bytes = static_cast<const uint8_t*>(tensor.data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    hash = (hash ^ bytes[i]) * 1099511628211u;
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

// A line for each result of this rank.
std::string Results(ProcessGroup* group) {
  const int n = group->size();
  std::string lines;
  const auto add = [&](const std::string& what, const at::Tensor& result) {
    absl::StrAppend(&lines, what, " ", HashOf(result), "\n");
  };
  for (const at::ScalarType dtype : AllTypes()) {
    for (const int64_t size : {1, 2, 31, 1009, 9973, 100003}) {
      const std::string name = absl::StrCat(at::toString(dtype), " ", size);
      const at::Tensor input = Values(group->rank(), size * n, dtype);
      const at::Tensor part = at::empty({size}, input.options());
      group->ReduceScatter(part, input)->Wait();
      add(name + " reduce-scatter", part);
      group->AllGather(input, part)->Wait();
      add(name + " all-gather", input);
      const at::Tensor whole = Values(group->rank(), size, dtype);
      group->AllReduce(whole)->Wait();
      add(name + " all-reduce", whole);
      group->Broadcast(part, static_cast<int>(size % n))->Wait();
      add(name + " broadcast", part);
    }
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    // Many blocks.
    const at::Tensor whole = Values(group->rank(), 1200007, dtype);
    group->AllReduce(whole)->Wait();
    add("large", whole);
  }
  const at::Tensor few = Values(group->rank(), 9, at::kDouble);
  group->AllReduceHost(absl::MakeSpan(few.data_ptr<double>(), 9));
  add("few", few);
  return lines;
}

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_P(HostsTest, GivesTheBitsOfOneHost) {
  const int n = static_cast<int>(GetParam().size());
  const auto path = [](const std::string& run, int rank) {
    return absl::StrCat(testing::TempDir(), "/", run, ".", rank);
  };
  const auto write = [&](const std::string& run) {
    return [path, run](ProcessGroup* group) {
      std::ofstream(path(run, group->rank())) << Results(group);
    };
  };
  ASSERT_EQ(RunRanks("shm", n, write("one")), 0);
  ASSERT_EQ(RunHosts(GetParam(), write("hosts")), 0);
  for (int rank = 0; rank < n; ++rank) {
    const std::string want = ReadAll(path("one", rank));
    EXPECT_THAT(want, HasSubstr("few "));
    EXPECT_EQ(ReadAll(path("hosts", rank)), want) << "rank " << rank;
  }
}

// Ranks of different speeds, nothing but the queue between the collectives.
TEST_P(HostsTest, ManyAtOnce) {
  EXPECT_EQ(
      RunHosts(
          GetParam(),
          [](ProcessGroup* group) {
            const int n = group->size();
            const int rank = group->rank();
            std::vector<at::Tensor> sums;
            std::vector<at::Tensor> told;
            std::vector<at::Tensor> all;
            std::vector<std::unique_ptr<Work>> works;
            for (int i = 0; i < 40; ++i) {
              // sleeps: each rank is late in turn
              if (i % n == rank) usleep(3000);
              const int64_t size = i % 5 == 0 ? 700001 : 1 + 977 * i;
              sums.push_back(at::full({size}, rank + i, at::kFloat));
              told.push_back(at::full({1 + 3 * size / 4}, rank, at::kInt));
              all.push_back(at::full({n * (1 + size / 8)}, -1, at::kInt));
              works.push_back(group->AllReduce(sums.back()));
              works.push_back(group->Broadcast(told.back(), i % n));
              works.push_back(group->AllGather(
                  all.back(), at::full({1 + size / 8}, rank, at::kInt)));
            }
            double one = 1;
            group->AllReduceHost(absl::MakeSpan(&one, 1));
            Require(one == n, "sum behind all others");
            for (auto work = works.rbegin(); work != works.rend(); ++work) {
              (*work)->Wait();
            }
            for (int i = 0; i < 40; ++i) {
              Require(sums[i].eq(n * i + n * (n - 1) / 2).all().item<bool>(),
                      absl::StrCat("all-reduce ", i));
              Require(told[i].eq(i % n).all().item<bool>(),
                      absl::StrCat("broadcast ", i));
              const at::Tensor rows = all[i].view({n, -1});
              for (int r = 0; r < n; ++r) {
                Require(rows[r].eq(r).all().item<bool>(),
                        absl::StrCat("all-gather ", i));
              }
            }
          }),
      0);
}

double HostSum(ProcessGroup* group, double value) {
  group->AllReduceHost(absl::MakeSpan(&value, 1));
  return value;
}

std::unique_ptr<ProcessGroup> SplitOrThrow(ProcessGroup* group, int color) {
  auto split = group->Split(color);
  Require(split.ok(), split.status().ToString());
  return *std::move(split);
}

TEST(HostsGroup, SplitsWithinAndAcrossHosts) {
  const Hosts hosts = {0, 0, 1, 1};
  EXPECT_EQ(
      RunHosts(hosts,
               [](ProcessGroup* group) {
                 const int rank = group->rank();
                 const auto within = SplitOrThrow(group, rank / 2);
                 const auto across = SplitOrThrow(group, rank % 2);
                 Require(within->backend() == "shm", "within a host");
                 Require(across->backend() == "shm+gloo", "across hosts");
                 Require(across->rank() == rank / 2, "rank across");
                 CheckCollectives(within.get(), at::kFloat, 40009);
                 CheckCollectives(across.get(), at::kBFloat16, 40009);
                 CheckOverlap(across.get());
                 // Concurrently on all three groups.
                 const at::Tensor a = at::full({300000}, rank, at::kFloat);
                 const at::Tensor b = a.clone();
                 const at::Tensor c = a.clone();
                 const auto in_all = group->AllReduce(c);
                 const auto in_host = within->AllReduce(a);
                 const auto over_hosts = across->AllReduce(b);
                 over_hosts->Wait();
                 in_host->Wait();
                 in_all->Wait();
                 Require(a.eq(4 * (rank / 2) + 1).all().item<bool>(), "a");
                 Require(b.eq(2 * (rank % 2) + 2).all().item<bool>(), "b");
                 Require(c.eq(6).all().item<bool>(), "c");
               }),
      0);
}

TEST(HostsGroup, SplitsIntoUnevenGroups) {
  const Hosts hosts = {0, 0, 0, 1, 1, 2};
  EXPECT_EQ(RunHosts(hosts,
                     [](ProcessGroup* group) {
                       const int rank = group->rank();
                       // Ranks 0, 1, 3, 5 on three hosts, 2 and 4 on two.
                       const bool four = rank == 0 || rank % 2 == 1;
                       const auto part = SplitOrThrow(group, four ? 9 : 4);
                       Require(part->backend() == "shm+gloo", "backend");
                       Require(HostSum(part.get(), rank) == (four ? 9 : 6),
                               "sum");
                       CheckCollectives(part.get(), at::kFloat, 5003);
                       // Ranks 0 and 1 on a host; 3 and 5 on two; 2 and 4
                       // alone.
                       const auto small =
                           SplitOrThrow(part.get(), four ? rank >= 3 : rank);
                       if (four && rank < 3) {
                         Require(small->backend() == "shm", "0 and 1");
                         Require(HostSum(small.get(), rank) == 1, "0 + 1");
                       } else if (four) {
                         Require(small->backend() == "shm+gloo", "3 and 5");
                         Require(HostSum(small.get(), rank) == 8, "3 + 5");
                       } else {
                         Require(small->backend() == "none", "alone");
                       }
                       Require(HostSum(group, 1) == 6, "all");
                     }),
            0);
}

TEST(HostsGroup, CountsAsTheOthersDo) {
  EXPECT_EQ(
      RunHosts({0, 0, 1, 1},
               [](ProcessGroup* group) {
                 Require(group->stats().bytes_sent == 0, "nothing sent yet");
                 const at::Tensor whole = at::full({60}, 1, at::kFloat);
                 group->AllReduce(whole)->Wait();
                 const CommunicationStats stats = group->stats();
                 Require(stats.bytes_sent == 2 * 240 * 3 / 4, "all-reduce");
                 Require(stats.busy_seconds > 0, "busy");
                 Require(stats.exposed_seconds > 0, "exposed");
                 const auto across = SplitOrThrow(group, group->rank() % 2);
                 const int64_t before = group->stats().bytes_sent;
                 across->AllReduce(whole)->Wait();
                 Require(across->stats().bytes_sent == 240, "its own");
                 Require(group->stats().bytes_sent - before == 240,
                         "in the parent, too");
               }),
      0);
}

// Flat Gloo if any rank asks for it.
TEST(HostsGroup, IsForAllOrNone) {
  EXPECT_EQ(LaunchRanks(3,
                        [](const RankInfo& info) -> absl::Status {
                          setenv("CAPSTAN_HOST_ID", info.rank == 0 ? "a" : "b",
                                 1);
                          unsetenv("CAPSTAN_CPU_COLLECTIVES");
                          if (info.rank == 1) {
                            setenv("CAPSTAN_CPU_COLLECTIVES", "gloo", 1);
                          }
                          CAPSTAN_ASSIGN_OR_RETURN(const auto group,
                                                   CreateProcessGroup(info, 0));
                          Require(group->backend() == "gloo", "backend");
                          return absl::OkStatus();
                        }),
            0);
}

// The ids say one host, but rank 1 can't see rank 0's process.
TEST(HostsGroup, RanksThatCanNotShareMemoryAreHostsOfTheirOwn) {
  const auto can_unshare = [] {
    const pid_t pid = fork();
    if (pid == 0) _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  if (!can_unshare()) GTEST_SKIP() << "needs root, for a PID namespace";
  const auto check = [](const RankInfo& info) -> absl::Status {
    CAPSTAN_ASSIGN_OR_RETURN(const auto group, CreateProcessGroup(info, 0));
    Require(group->backend() == "shm+gloo", "backend");
    CheckCollectives(group.get(), at::kFloat, 5003);
    return absl::OkStatus();
  };
  const auto run = [&](const RankInfo& info) -> absl::Status {
    unsetenv("CAPSTAN_CPU_COLLECTIVES");
    setenv("CAPSTAN_HOST_ID", info.rank < 2 ? "a" : "b", 1);
    if (info.rank != 1) return check(info);
    Require(unshare(CLONE_NEWPID) == 0, "unshare");
    const pid_t pid = fork();
    if (pid == 0) _exit(check(info).ok() ? 0 : 1);
    int status = 0;
    waitpid(pid, &status, 0);
    Require(status == 0, "rank 1 in its namespace");
    return absl::OkStatus();
  };
  std::string text;
  EXPECT_EQ(WithErrors([&] { return LaunchRanks(4, run); }, &text), 0) << text;
  EXPECT_THAT(text, HasSubstr("can't share memory with the other ranks of its "
                              "host, which then use Gloo"));
}

TEST(HostsGroup, LeavesInOrder) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(RunHosts({0, 0, 1, 2},
                       [](ProcessGroup* group) {
                         std::vector<double> values = {1, 2, 3};
                         group->AllReduceHost(absl::MakeSpan(values));
                         group->Broadcast(at::full({100000}, 1), 0)->Wait();
                       }),
              0);
  }
}

// What a rank is told that waits in `collective`; "" if it completes.
std::string ErrorOf(const std::function<void()>& collective) {
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    collective();
  } catch (const std::exception& e) {
    message = e.what();
  }
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - begin;
  // At once; on a busy machine, too.
  Require(time.count() < 30, absl::StrCat("after ", time.count(), " s"));
  fprintf(stderr, "%s\n", message.c_str());
  return message;
}

struct Death {
  Hosts hosts;
  int victim;
};

class DeathTest : public testing::TestWithParam<Death> {};
INSTANTIATE_TEST_SUITE_P(
    Ranks, DeathTest,
    testing::Values(Death{{0, 0, 1, 1}, 0}, Death{{0, 0, 1, 1}, 1},
                    Death{{0, 0, 1, 1}, 2}, Death{{0, 0, 1, 1}, 3},
                    Death{{0, 1, 2, 3}, 1}, Death{{0, 1, 2, 3}, 3},
                    Death{{0, 1, 0, 1}, 2}),
    [](const testing::TestParamInfo<Death>& info) {
      return absl::StrCat("On", absl::StrJoin(info.param.hosts, ""), "Rank",
                          info.param.victim);
    });

TEST_P(DeathTest, AKilledRankEndsAllWaits) {
  const int victim = GetParam().victim;
  std::string text;
  const int exit_code = WithErrors(
      [&] {
        return RunHosts(GetParam().hosts, [&](ProcessGroup* group) {
          const at::Tensor tensor = at::full({8 << 20}, 1, at::kFloat);
          const auto work = group->AllReduce(tensor);
          if (group->rank() == victim) raise(SIGKILL);
          const std::string told = ErrorOf([&] {
            work->Wait();
            // It may complete before the signal.
            group->AllReduce(tensor)->Wait();
          });
          Require(absl::StrContains(told,
                                    " lost the connection to another rank "
                                    "during all-reduce: rank "),
                  "told: " + told);
          // So does every later one.
          Require(!ErrorOf([&] { HostSum(group, 1); }).empty(), "later");
          usleep(300000);
        });
      },
      &text);
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(text, HasSubstr(absl::StrCat("ERROR: [rank ", victim,
                                           "] killed by signal 9 (SIGKILL)")));
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    EXPECT_THAT(text, HasSubstr(absl::StrCat("[rank ", rank, "] rank ", rank,
                                             " lost the connection to another "
                                             "rank during all-reduce: rank ")));
  }
}

// Ranks of one host are told; nothing of another host's call gets into theirs.
TEST(HostsGroup, DifferentCollectivesNeverMeet) {
  for (const bool one_host : {true, false}) {
    EXPECT_EQ(
        LaunchRanks(
            4,
            [&](const RankInfo& info) -> absl::Status {
              unsetenv("CAPSTAN_CPU_COLLECTIVES");
              setenv("CAPSTAN_HOST_ID", info.rank < 2 ? "0" : "1", 1);
              CAPSTAN_ASSIGN_OR_RETURN(auto group, CreateProcessGroup(info, 0));
              const bool other = one_host ? info.rank == 1 : info.rank > 1;
              const std::string told = ErrorOf([&] {
                if (!one_host && info.rank == 3) {
                  // Nobody would end it.
                  usleep(500000);
                  throw std::runtime_error("enough");
                }
                group->AllReduce(at::full({other ? 900 : 1000}, 1, at::kFloat))
                    ->Wait();
              });
              const bool named = absl::StrContains(
                  told,
                  "rank 1 calls all-reduce of 900 float32 as its "
                  "collective 2, rank 0 all-reduce of 1000 float32");
              Require(!told.empty(), "it ends");
              Require(named == (one_host && info.rank < 2), told);
              return absl::OkStatus();
            }),
        0);
  }
}

// A rank whose process continues but whose group is closed.
TEST_P(DeathTest, AClosedGroupEndsAllWaits) {
  OthersEnd others;
  EXPECT_EQ(
      LaunchRanks(
          4,
          [&](const RankInfo& info) -> absl::Status {
            unsetenv("CAPSTAN_CPU_COLLECTIVES");
            const int host = GetParam().hosts[info.rank];
            setenv("CAPSTAN_HOST_ID", std::to_string(host).c_str(), 1);
            CAPSTAN_ASSIGN_OR_RETURN(auto group, CreateProcessGroup(info, 0));
            if (info.rank == GetParam().victim) {
              group.reset();
              others.Await(info.world_size - 1);
              return absl::OkStatus();
            }
            const std::string told = ErrorOf([&] { HostSum(group.get(), 1); });
            Require(absl::StrContains(told, "rank "), told);
            others.Tell();
            return absl::OkStatus();
          }),
      0);
}

}  // namespace
}  // namespace capstan
