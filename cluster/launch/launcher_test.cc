// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/launch/changing_hosts.h"
#include "cluster/launch/host_ranks.h"
#include "cluster/launch/launch_for_test.h"
#include "cluster/launch/network.h"
#include "cluster/launch/progress.h"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// What must end at once would else never do so.
constexpr double kSoon = 60;

// What launch.nccl may say: the field of what is wrong, or "".
std::string WrongNcclField(const NcclSettings& nccl) {
  LaunchSettings settings;
  settings.nccl = nccl;
  return FieldOf(FindPlace(settings, 0).status()).value_or("");
}

TEST(PlaceTest, ChecksSettingsOfNccl) {
  EXPECT_EQ(WrongNcclField({}), "");
  EXPECT_EQ(WrongNcclField({60.0, 8, 4, 4}), "");
  EXPECT_EQ(WrongNcclField({60.0, 1024, 64, 0}), "");
  EXPECT_EQ(WrongNcclField({-1.0, 0, 0, 0}), "nccl.timeout_seconds");
  EXPECT_EQ(WrongNcclField({1e300, 0, 0, 0}), "nccl.timeout_seconds");
  EXPECT_EQ(WrongNcclField({0.0, -1, 0, 0}), "nccl.buffer_mib");
  EXPECT_EQ(WrongNcclField({0.0, 1025, 0, 0}), "nccl.buffer_mib");
  EXPECT_EQ(WrongNcclField({0.0, 0, -1, 0}), "nccl.min_ctas");
  EXPECT_EQ(WrongNcclField({0.0, 0, 65, 0}), "nccl.min_ctas");
  EXPECT_EQ(WrongNcclField({0.0, 0, 0, -2}), "nccl.max_ctas");
  EXPECT_EQ(WrongNcclField({0.0, 0, 8, 4}), "nccl.min_ctas");
}

// 0 is what a field that isn't set has, and its message says so.
TEST(PlaceTest, ZeroIsNotSet) {
  LaunchSettings settings;
  settings.nodes = -1;
  EXPECT_EQ(FindPlace(settings, 0).status().message(),
            "must be from 0 (not set) to 65536, is -1");
  settings.nodes = 0;
  EXPECT_TRUE(FindPlace(settings, 0).ok());
  settings.nccl.buffer_mib = -1;
  EXPECT_EQ(FindPlace(settings, 0).status().message(),
            "must be from 0 (NCCL's own) to 1024, is -1");
  settings.nccl.buffer_mib = 0;
  settings.nccl.min_ctas = 65;
  EXPECT_EQ(FindPlace(settings, 0).status().message(),
            "must be from 0 (NCCL's own) to 64, is 65");
}

TEST(LaunchRanks, AllWell) {
  const Result result = Launch(3, [](const RankInfo& info) {
    const bool right =
        info.world_size == 3 && info.local_world_size == 3 &&
        info.local_rank == info.rank && info.threads >= 1 &&
        info.master_port > 0 && (info.listen_fd >= 0) == (info.rank == 0) &&
        getenv("RANK") == std::to_string(info.rank) &&
        getenv("MASTER_PORT") == std::to_string(info.master_port) &&
        getenv("WORLD_SIZE") == std::string("3");
    return right ? absl::OkStatus() : absl::InternalError("wrong RankInfo");
  });
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.exit_code, 0);
}

// Host 1 of two: the second half of the ranks, which don't serve.
TEST(LaunchRanks, OneHostOfSeveral) {
  Place place;
  place.info.nodes = 2;
  place.info.node_rank = 1;
  place.info.local_world_size = 2;
  place.info.world_size = 4;
  place.info.master_addr = "n0";
  place.info.master_port = 29500;
  place.gpu_ids = {5, 3};
  const Result result = Capture([&] {
    return LaunchRanks(place, [](const RankInfo& info) {
      const bool right = info.rank == 2 + info.local_rank &&
                         info.world_size == 4 && info.nodes == 2 &&
                         info.node_rank == 1 && info.listen_fd == -1 &&
                         info.GpuIndex() == (info.local_rank == 0 ? 5 : 3) &&
                         getenv("RANK") == std::to_string(info.rank) &&
                         getenv("MASTER_ADDR") == std::string("n0") &&
                         getenv("MASTER_PORT") == std::string("29500");
      if (!right) return absl::InternalError("wrong RankInfo");
      printf("output\n");
      return info.rank == 3 ? absl::InvalidArgumentError("sample 7 is broken")
                            : absl::OkStatus();
    });
  });
  EXPECT_THAT(result.text, HasSubstr("[rank 2] output\n"));
  EXPECT_THAT(result.text, HasSubstr("ERROR: [rank 3] sample 7 is broken\n"));
  EXPECT_EQ(result.exit_code, 1);
}

// A trainer that a rank starts isn't that rank.
TEST(LaunchRanks, WhatARankStartsIsNoRank) {
  for (const bool forked : {true, false}) {
    const Result result = Capture([&] {
      const RankMain rank_main = [](const RankInfo& info) {
        const absl::StatusOr<Place> place = FindPlace(LaunchSettings(), 0);
        return place.ok() && place->Alone() && place->info.placed_by.empty() &&
                       !info.token.empty()
                   ? absl::OkStatus()
                   : absl::InternalError("took its parent's place");
      };
      if (forked) return LaunchRanks(2, rank_main);
      setenv("RANK", "0", 1);
      setenv("WORLD_SIZE", "1", 1);
      RankInfo info;
      info.token = "token";
      return RunSingleRank(info, rank_main);
    });
    EXPECT_EQ(result.exit_code, 0) << result.text;
  }
}

TEST(LaunchRanks, PrefixesLines) {
  const Result result = Launch(2, [](const RankInfo& info) {
    if (info.rank == 0) return absl::OkStatus();
    fputs("to standard error\n", stderr);
    printf("to standard output");
    return absl::OkStatus();
  });
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.text, HasSubstr("[rank 1] to standard error\n"));
  EXPECT_THAT(result.text, HasSubstr("[rank 1] to standard output\n"));
}

TEST(LaunchRanks, TellsTheCauseOnly) {
  const Result result = Launch(3, [](const RankInfo& info) {
    if (info.rank != 1) return LostPeerError("a peer vanished");
    usleep(300000);  // its report comes last
    return absl::InvalidArgumentError("sample 7 is broken");
  });
  EXPECT_EQ(result.text, "ERROR: [rank 1] sample 7 is broken\n");
  EXPECT_EQ(result.exit_code, 1);
}

TEST(LaunchRanks, EndsRanksThatHang) {
  const Result result = Launch(2, [](const RankInfo& info) {
    if (info.rank == 0) return absl::DataLossError("bad file");
    while (true) pause();
  });
  EXPECT_EQ(result.text, "ERROR: [rank 0] bad file\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_LT(result.seconds, kSoon);
}

TEST(LaunchRanks, TellsOnceWhatAllRanksSay) {
  const Result result = Launch(3, [](const RankInfo& info) {
    return absl::InvalidArgumentError("loss is not finite in step 4");
  });
  EXPECT_EQ(result.text, "ERROR: loss is not finite in step 4\n");
  EXPECT_EQ(result.exit_code, 1);
}

TEST(LaunchRanks, AnExceptionIsAnError) {
  const Result result = Launch(1, [](const RankInfo& info) -> absl::Status {
    throw std::runtime_error("thrown");
  });
  EXPECT_EQ(result.text, "ERROR: thrown\n");
  EXPECT_EQ(result.exit_code, 1);
}

TEST(LaunchRanks, AKilledRankIsTheCause) {
  const Result result = Launch(2, [](const RankInfo& info) {
    if (info.rank == 0) return LostPeerError("a peer vanished");
    usleep(100000);
    raise(SIGKILL);
    return absl::OkStatus();
  });
  EXPECT_EQ(result.text,
            "ERROR: [rank 1] killed by signal 9 (SIGKILL): the system may "
            "be out of memory\n");
  EXPECT_EQ(result.exit_code, 1);
}

TEST(LaunchRanks, ACrashIsTheCause) {
  const Result result = Launch(2, [](const RankInfo& info) {
    if (info.rank == 0) return UntilStopped();
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
    return absl::OkStatus();
  });
  EXPECT_THAT(result.text, HasSubstr("ERROR: [rank 1] killed by signal 11 "
                                     "(SIGSEGV)\n"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_LT(result.seconds, kSoon);
}

TEST(LaunchRanks, ARankThatJustExitsIsAnError) {
  const Result result =
      Launch(1, [](const RankInfo& info) -> absl::Status { _exit(0); });
  EXPECT_THAT(result.text, StartsWith("ERROR: ended with exit code 0"));
  EXPECT_EQ(result.exit_code, 1);
}

TEST(LaunchRanks, PassesASignalOn) {
  const Result result = Launch(
      2, [](const RankInfo& info) { return UntilStopped(); },
      [](pid_t pid) { kill(pid, SIGTERM); });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.text, HasSubstr("SIGTERM: stopping"));
  EXPECT_THAT(result.text, HasSubstr("\nstopped after step 3\n"));
  EXPECT_THAT(result.text, Not(HasSubstr("ERROR")));
}

TEST(LaunchRanks, ASecondSignalEndsAtOnce) {
  const Result result = Launch(
      2,
      [](const RankInfo& info) -> absl::Status {
        Ready();
        while (true) pause();
      },
      [](pid_t pid) {
        kill(pid, SIGINT);
        AwaitTaken(pid, SIGINT);
        usleep(200000);
        kill(pid, SIGINT);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_LT(result.seconds, kSoon);
}

TEST(LaunchRanks, ARankStoppedFromOutsideStopsTheRun) {
  const Result result = Launch(1, [](const RankInfo& info) {
    raise(SIGINT);
    return UntilStopped();
  });
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
}

TEST(LaunchRanks, RanksDieWithTheParent) {
  // End of file is only seen once all holders of the pipe have exited.
  const Result result = Launch(
      2,
      [](const RankInfo& info) -> absl::Status {
        Ready();
        // Holds the parent's own standard error too.
        while (true) pause();
      },
      [](pid_t pid) { kill(pid, SIGKILL); });
  EXPECT_LT(result.seconds, kSoon);
}

TEST(LaunchRanks, WorksWhereInterruptsAreIgnored) {
  const Result result = Capture(
      [] {
        signal(SIGINT, SIG_IGN);
        return LaunchRanks(1,
                           [](const RankInfo& info) { return UntilStopped(); });
      },
      1, [](pid_t pid) { kill(pid, SIGINT); });
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
}

// Hosts that do as a test says, which tell of calls on standard error.
class FakeHosts : public ChangingHosts {
 public:
  FakeHosts() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  // A world with this host at `node_rank` of `nodes`, from now on.
  void Enter(int node_rank, int nodes, const std::string& why = "",
             bool gentle = false) {
    world_.number += 1;
    world_.node_rank = node_rank;
    world_.nodes = nodes;
    world_.addresses.assign(nodes, "127.0.0.1");
    world_.why = why;
    world_.gentle = gentle;
    eventfd_write(event_.get(), 1);
  }
  void End(const Ending& ending) { ending_ = ending; }

  std::function<void(int64_t step)> on_progress;
  std::function<void()> on_died;
  std::function<void()> on_handle;

  int fd() const override { return event_.get(); }
  void CloseInChild() override { close(event_.get()); }
  void Handle() override {
    if (on_handle) on_handle();
    eventfd_t ignored;
    if (eventfd_read(event_.get(), &ignored) != 0) return;
  }
  const World& world() const override { return world_; }
  const Ending& ending() const override { return ending_; }
  int TakeListening() override { return -1; }
  std::string Waits() const override { return "waits"; }
  void Progressed(int64_t world, int64_t step) override {
    if (on_progress) on_progress(step);
  }
  void Entered(int64_t world) override { Tell("entered ", world); }
  void Died(int64_t world, int64_t step, const std::string& how,
            bool themselves) override {
    Tell("died in ", world, " after ", step, ": ", how, themselves ? "!" : "");
    if (on_died) on_died();
  }
  void Failed(int64_t world, const std::string& error) override {
    Tell("failed in ", world, ": ", error);
  }
  void Leave() override { Tell("leaves"); }
  void LeaveOut(int64_t world, const std::string& hosts) override {
    Tell("without ", hosts, " in ", world);
  }
  void Finish(int code) override { Tell("finished with ", code); }

 private:
  template <typename... Words>
  static void Tell(const Words&... words) {
    PrintToStderr(absl::StrCat("hosts: ", words..., "\n"));
  }

  const SocketFd event_;
  World world_;
  Ending ending_;
};

Place PlaceOfChanging() {
  Place place;
  place.changes = true;
  place.max_restarts = 9;
  place.info.nodes = 4;
  place.info.local_world_size = 2;
  place.info.world_size = 8;
  return place;
}

TEST(ChangingWorlds, RanksLeaveForTheNextWorldAtTheEndOfAStep) {
  const Result result = Capture([] {
    FakeHosts hosts;
    hosts.Enter(0, 1);
    bool joined = false;
    hosts.on_progress = [&](int64_t step) {
      if (step == 7 && !std::exchange(joined, true)) {
        hosts.Enter(1, 2, "host x has come", /*gentle=*/true);
      }
    };
    return LaunchRanks(
        PlaceOfChanging(),
        [](const RankInfo& info) {
          if (info.nodes == 1) {
            StepFinished(7);
            // sleeps: polls
            while (WorldChanges() == 0) usleep(1000);
            return RankHasLeft();
          }
          const bool right = info.world_size == 4 &&
                             info.rank == 2 + info.local_rank &&
                             info.restart == 1 && WorldChanges() == 0;
          return right ? absl::OkStatus() : absl::InternalError("RankInfo");
        },
        &hosts);
  });
  EXPECT_EQ(result.text,
            "hosts: entered 1\nhosts: entered 2\nhosts: finished with 0\n");
  EXPECT_EQ(result.exit_code, 0);
}

TEST(ChangingWorlds, AllRanksAreStartedAgainAfterADeath) {
  const Result result = Capture([] {
    FakeHosts hosts;
    hosts.Enter(0, 1);
    hosts.on_died = [&] { hosts.Enter(0, 1, "one has died"); };
    return LaunchRanks(
        PlaceOfChanging(),
        [](const RankInfo& info) {
          if (info.restart > 0) return absl::OkStatus();
          StepFinished(3);
          if (info.rank == 1) raise(SIGKILL);
          while (true) pause();
        },
        &hosts);
  });
  EXPECT_EQ(result.text,
            "hosts: entered 1\n"
            "hosts: died in 1 after 3: rank 1 was killed by signal 9 "
            "(SIGKILL)!\n"
            "one has died: going on with 1 host, 2 ranks\n"
            "hosts: entered 2\nhosts: finished with 0\n");
  EXPECT_EQ(result.exit_code, 0);
}

TEST(ChangingWorlds, AHostWithoutARoleEndsItsRanksAndWaits) {
  const Result result = Capture([] {
    FakeHosts hosts;
    hosts.Enter(0, 2);
    hosts.on_progress = [&](int64_t step) {
      if (hosts.world().number > 1) return;
      hosts.Enter(-1, 1);
      hosts.End({"the run has ended", /*failed=*/false, /*stops=*/false, 0});
    };
    return LaunchRanks(
        PlaceOfChanging(),
        [](const RankInfo& info) -> absl::Status {
          StepFinished(3);
          while (true) pause();
        },
        &hosts);
  });
  EXPECT_EQ(result.text, "hosts: entered 1\nthe run has ended\n");
  EXPECT_EQ(result.exit_code, 0);
}

TEST(ChangingWorlds, AnErrorOfARankIsTheEndHere) {
  const Result result = Capture([] {
    FakeHosts hosts;
    hosts.Enter(0, 1);
    return LaunchRanks(
        PlaceOfChanging(),
        [](const RankInfo& info) { return absl::DataLossError("bad file"); },
        &hosts);
  });
  EXPECT_EQ(result.text,
            "hosts: entered 1\nERROR: bad file\n"
            "hosts: failed in 1: bad file\n");
  EXPECT_EQ(result.exit_code, 1);
}

TEST(ChangingWorlds, ASignalEndsTheWaitForOthers) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Result result = Capture(
        [] {
          FakeHosts hosts;
          bool told = false;
          hosts.on_handle = [&] {
            if (!std::exchange(told, true)) Ready();
          };
          return LaunchRanks(
              PlaceOfChanging(),
              [](const RankInfo& info) { return absl::OkStatus(); }, &hosts);
        },
        1, [&](pid_t pid) { kill(pid, signal); });
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_THAT(result.text, Not(HasSubstr("ERROR")));
    EXPECT_THAT(result.text, HasSubstr("hosts: leaves"));
    EXPECT_LT(result.seconds, kSoon);
  }
}

TEST(RunSingleRank, Ends) {
  RankInfo one;
  RankInfo second;
  second.rank = 1;
  second.world_size = 2;
  const RankMain ok = [](const RankInfo& info) { return absl::OkStatus(); };
  const RankMain fails = [](const RankInfo& info) {
    return absl::NotFoundError("no such file");
  };
  EXPECT_EQ(Capture([&] { return RunSingleRank(one, ok); }).exit_code, 0);
  Result result = Capture([&] { return RunSingleRank(one, fails); });
  EXPECT_EQ(result.text, "ERROR: no such file\n");
  EXPECT_EQ(result.exit_code, 1);
  result = Capture([&] { return RunSingleRank(second, fails); });
  EXPECT_EQ(result.text, "ERROR: [rank 1] no such file\n");
}

TEST(RunSingleRank, FirstSignalAsksSecondEnds) {
  Result result = Capture(
      [] {
        return RunSingleRank(RankInfo(), [](const RankInfo& info) {
          RanksHaveMet();
          return UntilStopped();
        });
      },
      1, [](pid_t pid) { kill(pid, SIGTERM); });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.text, HasSubstr("stopped after step 3\n"));
  result = Capture(
      [] {
        return RunSingleRank(RankInfo(),
                             [](const RankInfo& info) -> absl::Status {
                               RanksHaveMet();
                               Ready();
                               while (true) pause();
                             });
      },
      1,
      [](pid_t pid) {
        kill(pid, SIGTERM);
        AwaitTaken(pid, SIGTERM);
        usleep(100000);
        kill(pid, SIGINT);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
}

// On its own it has nothing to save.
TEST(RunSingleRank, ASignalEndsItBeforeTheRanksHaveMet) {
  const Result result = Capture(
      [] {
        return RunSingleRank(RankInfo(),
                             [](const RankInfo& info) -> absl::Status {
                               Ready();
                               while (true) pause();
                             });
      },
      1, [](pid_t pid) { kill(pid, SIGTERM); });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
}

}  // namespace
}  // namespace capstan
