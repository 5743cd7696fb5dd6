// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/restarts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/lost_peer.h"
#include "cluster/launch/launch_for_test.h"
#include "cluster/launch/progress.h"

namespace capstan {
namespace {

using testing::Eq;
using testing::HasSubstr;
using testing::Not;

Result LaunchAgain(int ranks, int max_restarts, const RankMain& rank_main,
                   const std::function<void(pid_t)>& when_ready = nullptr,
                   int ready = 0) {
  return Capture(
      [&] {
        Place place;
        place.info.world_size = place.info.local_world_size = ranks;
        place.max_restarts = max_restarts;
        place.mirrors = true;
        return LaunchRanks(place, rank_main);
      },
      ready, when_ready);
}

TEST(RestartsTest, CountsAndEndsEarly) {
  Restarts none(0);
  EXPECT_FALSE(none.on());
  EXPECT_FALSE(none.Again(3));
  EXPECT_EQ(none.Ending(), "");

  Restarts two(2);
  EXPECT_TRUE(two.Again(7));
  EXPECT_EQ(two.When(), "after step 7");
  EXPECT_EQ(two.Count(), " (1 of 2)");
  EXPECT_TRUE(two.Again(9));
  EXPECT_FALSE(two.Again(11));
  EXPECT_THAT(two.Ending(), HasSubstr("started again 2 times (launch.max_"));

  // A step in between, and the count of fruitless ones begins anew.
  Restarts many(100);
  EXPECT_TRUE(many.Again(-1));
  EXPECT_EQ(many.When(), "before the first step");
  EXPECT_TRUE(many.Again(-1));
  EXPECT_TRUE(many.Again(5));
  EXPECT_TRUE(many.Again(-1));
  EXPECT_EQ(many.When(), "after step 5");
  // To leave out a host is no death.
  EXPECT_TRUE(many.Again(-1, /*gave_up_host=*/true));
  EXPECT_FALSE(many.Again(-1));
  EXPECT_THAT(many.Ending(), HasSubstr("3 deaths with no step finished"));
}

// From a checkpoint each start does some steps, and dies in the same one.
TEST(RestartsTest, TheSameStepThriceIsEnough) {
  Restarts restarts(1000);
  EXPECT_TRUE(restarts.Again(56));
  EXPECT_TRUE(restarts.Again(56));
  EXPECT_FALSE(restarts.Again(56));
  EXPECT_THAT(
      restarts.Ending(),
      HasSubstr("started again 2 times, and died after the same step, 56"));

  // Deaths here and there aren't its fault.
  Restarts random(1000);
  for (const int64_t step : {56, 40, 56, 57, 30}) {
    EXPECT_TRUE(random.Again(step)) << step;
  }
}

TEST(PlaceWithoutTest, NumbersAnew) {
  Place place;
  place.info.nodes = 4;
  place.info.node_rank = 2;
  place.info.local_world_size = 2;
  place.info.world_size = 8;
  std::string hosts = "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4";
  const absl::StatusOr<Place> left = PlaceWithout(place, "1,3", &hosts);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->info.nodes, 2);
  EXPECT_EQ(left->info.node_rank, 1);
  EXPECT_EQ(left->info.world_size, 4);
  EXPECT_EQ(left->info.master_addr, "127.0.0.1");
  EXPECT_EQ(hosts, "10.0.0.1,10.0.0.3");
  EXPECT_TRUE(absl::IsUnavailable(PlaceWithout(place, "2", &hosts).status()));
  EXPECT_FALSE(PlaceWithout(place, "4", &hosts).ok());
  EXPECT_FALSE(PlaceWithout(place, "1,x", &hosts).ok());
}

TEST(PlaceWithoutTest, WithoutTheFirstHostTheNextIsRank0s) {
  Place place;
  place.info.nodes = 3;
  place.info.node_rank = 2;
  place.info.local_world_size = 2;
  place.info.world_size = 6;
  place.info.master_addr = "n0";
  place.info.master_port = 29500;
  std::string hosts = "10.0.0.1,10.0.0.2,10.0.0.3";
  absl::StatusOr<Place> left = PlaceWithout(place, "0", &hosts);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->info.master_addr, "10.0.0.2");
  EXPECT_EQ(left->info.master_port, 29500);
  EXPECT_EQ(left->info.node_rank, 1);
  EXPECT_EQ(hosts, "10.0.0.2,10.0.0.3");
  // And again, to the last.
  left = PlaceWithout(*left, "0", &hosts);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->info.nodes, 1);
  EXPECT_EQ(left->info.node_rank, 0);
  // Nobody has told where the others are.
  hosts.clear();
  EXPECT_TRUE(absl::IsUnavailable(PlaceWithout(place, "0", &hosts).status()));
  // Nor needs to, where rank 0 publishes that.
  place.info.master_addr.clear();
  left = PlaceWithout(place, "0", &hosts);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->info.master_addr, "");
}

// Host 1 of 2 doesn't come back: host 0 goes on as the only one.
TEST(RestartTest, AHostThatIsGoneIsLeftOut) {
  const Result result = Capture([] {
    Place place;
    place.info.nodes = 2;
    place.info.local_world_size = 2;
    place.info.world_size = 4;
    place.info.master_port = 29500;
    place.max_restarts = 3;
    return LaunchRanks(place, [](const RankInfo& info) {
      StepFinished(7);
      if (info.restart == 1) NoteHostsGone("1");
      if (info.restart < 2) return LostPeerError("rank 3 has left");
      return info.world_size == 2 && info.nodes == 1 &&
                     info.rank == info.local_rank && info.master_port != 29500
                 ? absl::OkStatus()
                 : absl::InternalError("wrong RankInfo");
    });
  });
  EXPECT_THAT(result.text,
              HasSubstr("going on without host 1: 2 ranks are left\n"));
  EXPECT_EQ(result.exit_code, 0) << result.text;
}

TEST(RestartTest, AKilledRankBringsAllUpAgain) {
  const Result result = LaunchAgain(3, 3, [](const RankInfo& info) {
    if (info.restart == 2) return absl::OkStatus();
    StepFinished(40 + info.restart);
    if (info.rank == 2) raise(SIGKILL);
    // They hang, as in a collective.
    while (true) pause();
  });
  EXPECT_EQ(result.text,
            "rank 2 was killed by signal 9 (SIGKILL) after step 40; starting "
            "the ranks again (1 of 3)\n"
            "rank 2 was killed by signal 9 (SIGKILL) after step 41; starting "
            "the ranks again (2 of 3)\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_LT(result.seconds, 60) << "they would hang for ever";
}

// The second ones can't be mistaken for the first.
TEST(RestartTest, EachStartHasItsOwnMeeting) {
  const Result result = LaunchAgain(2, 1, [](const RankInfo& info) {
    int listening = 0;
    socklen_t size = sizeof(listening);
    const bool serves = info.listen_fd >= 0 &&
                        getsockopt(info.listen_fd, SOL_SOCKET, SO_ACCEPTCONN,
                                   &listening, &size) == 0 &&
                        listening == 1;
    if (serves != (info.rank == 0)) return absl::InternalError("no socket");
    if (info.rank == 1) {
      fprintf(stderr, "%s\n%s\n", info.run_key.c_str(), info.token.c_str());
      fflush(stderr);
      if (info.restart == 0) raise(SIGKILL);
    }
    while (info.restart == 0) pause();
    return absl::OkStatus();
  });
  EXPECT_EQ(result.exit_code, 0) << result.text;
  std::vector<std::string> lines;
  for (size_t at = 0; at < result.text.size();) {
    const size_t end = result.text.find('\n', at);
    lines.push_back(result.text.substr(at, end - at));
    at = end + 1;
  }
  ASSERT_EQ(lines.size(), 5) << result.text;
  EXPECT_EQ(lines[3], lines[0] + "-restart-1");
  EXPECT_THAT(lines[4], Not(HasSubstr(lines[1].substr(9))));
}

TEST(RestartTest, MemoryOutlivesTheRanks) {
  const Result result = LaunchAgain(2, 1, [](const RankInfo& info) {
    if (info.mirror_fds.size() != 4) return absl::InternalError("not 4 files");
    const std::string mine = absl::StrCat("state of rank ", info.rank);
    const int fd = info.mirror_fds[2 * info.local_rank + 1];
    if (info.restart == 0) {
      if (pwrite(fd, mine.data(), mine.size(), 0) !=
          static_cast<ssize_t>(mine.size())) {
        return absl::InternalError("can't write");
      }
      StepFinished(1);
      if (info.rank == 1) {
        usleep(100000);
        raise(SIGKILL);
      }
      while (true) pause();
    }
    std::string found(mine.size(), ' ');
    if (pread(fd, &found[0], found.size(), 0) < 0) found.clear();
    return found == mine ? absl::OkStatus() : absl::DataLossError(found);
  });
  EXPECT_EQ(result.exit_code, 0) << result.text;
}

TEST(RestartTest, WithoutRestartsThereIsNoSuchMemory) {
  const Result result = LaunchAgain(1, 0, [](const RankInfo& info) {
    return info.mirror_fds.empty() ? absl::OkStatus()
                                   : absl::InternalError("files");
  });
  EXPECT_EQ(result.exit_code, 0) << result.text;
}

// It would fail again.
TEST(RestartTest, AnErrorOfARanksOwnEndsTheRun) {
  const Result result = LaunchAgain(2, 5, [](const RankInfo& info) {
    StepFinished(3);
    return info.rank == 0 ? LostPeerError("a peer vanished")
                          : absl::DataLossError("bad file");
  });
  EXPECT_EQ(result.text, "ERROR: [rank 1] bad file\n");
  EXPECT_EQ(result.exit_code, 1);
}

// As on a host whose peer has died.
TEST(RestartTest, ALostPeerBringsAllUpAgain) {
  const Result result = LaunchAgain(2, 1, [](const RankInfo& info) {
    StepFinished(3);
    return info.restart > 0 ? absl::OkStatus()
                            : LostPeerError("rank 7 has left the run");
  });
  EXPECT_THAT(result.text,
              HasSubstr(" lost the others (rank 7 has left the run) after step "
                        "3; starting the ranks again (1 of 1)\n"));
  EXPECT_EQ(result.exit_code, 0);
}

TEST(RestartTest, TheWatchdogsExitCodeIsADeath) {
  const RankMain hangs = [](const RankInfo& info) {
    StepFinished(info.restart);
    if (info.restart == 1) return absl::OkStatus();
    if (info.rank == 1) _exit(kHungExitCode);
    while (true) pause();
  };
  Result result = LaunchAgain(2, 1, hangs);
  EXPECT_EQ(result.text,
            "rank 1 was ended by the watchdog after step 0; starting the ranks "
            "again (1 of 1)\n");
  EXPECT_EQ(result.exit_code, 0);
  result = LaunchAgain(2, 0, hangs);
  EXPECT_THAT(result.text, HasSubstr("ERROR: [rank 1] ended by the watchdog"));
  EXPECT_EQ(result.exit_code, kHungExitCode);
}

TEST(RestartTest, TellsThatAllAreUsedUp) {
  const Result result = LaunchAgain(2, 2, [](const RankInfo& info) {
    StepFinished(10 * info.restart);
    if (info.rank == 0) _exit(3);
    while (true) pause();
    return absl::OkStatus();
  });
  EXPECT_THAT(result.text,
              HasSubstr("rank 0 ended with exit code 3 after step 10; starting "
                        "the ranks again (2 of 2)\nERROR: [rank 0] ended with "
                        "exit code 3 in the midst of the run; the ranks had "
                        "been started again 2 times (launch.max_restarts)\n"));
  EXPECT_EQ(result.exit_code, 1);
}

TEST(RestartTest, DeathsWithoutAStepEndIt) {
  const Result result = LaunchAgain(2, 50, [](const RankInfo& info) {
    if (info.rank == 1) raise(SIGKILL);
    while (true) pause();
    return absl::OkStatus();
  });
  EXPECT_THAT(result.text, HasSubstr("(2 of 50)\nERROR: [rank 1] killed by"));
  EXPECT_THAT(result.text,
              HasSubstr("the ranks had been started again 2 times, "
                        "and 3 deaths with no step finished"));
  EXPECT_THAT(result.text, Not(HasSubstr("(3 of 50)")));
  EXPECT_EQ(result.exit_code, 1);
}

TEST(RestartTest, ARunThatIsToStopIsNotStartedAgain) {
  const Result result = LaunchAgain(
      2, 5,
      [](const RankInfo& info) -> absl::Status {
        StepFinished(1);
        Ready();
        // sleeps: polls
        while (StopRequested() == 0) usleep(1000);
        if (info.rank == 0) raise(SIGKILL);
        while (true) pause();
      },
      [](pid_t pid) { kill(pid, SIGTERM); }, 2);
  EXPECT_THAT(result.text, HasSubstr("ERROR: [rank 0] killed by signal 9"));
  EXPECT_THAT(result.text, Not(HasSubstr("again (")));
  EXPECT_EQ(result.exit_code, 1);
}

// Before all of its ranks watch for signals.
TEST(RestartTest, StoppedWhileItStartsAgain) {
  const Result result = LaunchAgain(
      2, 5,
      [](const RankInfo& info) -> absl::Status {
        StepFinished(1);
        if (info.restart > 0) return UntilStopped();
        if (info.rank == 0) raise(SIGKILL);
        while (true) pause();
      },
      [](pid_t pid) { kill(pid, SIGTERM); }, 1);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.text;
}

// End of file on the launcher's standard error is seen when all have gone.
TEST(RestartTest, NoRankOutlivesTheLauncher) {
  const Result result = LaunchAgain(
      3, 5,
      [](const RankInfo& info) -> absl::Status {
        StepFinished(1);
        if (info.restart < 2 && info.rank == 0) raise(SIGKILL);
        if (info.restart == 2) Ready();
        if (info.restart == 2 && info.rank == 1) raise(SIGSTOP);
        while (true) pause();
      },
      [](pid_t pid) { kill(pid, SIGKILL); }, 3);
  EXPECT_EQ(result.exit_code, -1);
  EXPECT_LT(result.seconds, 60) << "they would stay for ever";
}

}  // namespace
}  // namespace capstan
