// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/launch/launch_for_test.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

// The state letter and the parent of /proc/PID/stat; ' ' and 0: it is gone.
std::pair<char, pid_t> StateOf(pid_t pid) {
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(stat, line);
  const size_t end = line.rfind(") ");
  if (end == std::string::npos) return {' ', 0};
  return {line[end + 2], atoi(line.c_str() + end + 4)};
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    int pid = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &pid) &&
        StateOf(pid).second == parent) {
      children.push_back(pid);
    }
  }
  return children;
}

// Whether all become stopped ('T'), or none is any more, within half a minute.
bool AwaitStopped(const std::vector<pid_t>& pids, bool stopped) {
  for (int i = 0; i < 3000; ++i) {
    bool all = true;
    for (const pid_t pid : pids) {
      all &= (StateOf(pid).first == 'T') == stopped;
    }
    if (all) return true;
    // sleeps: polls
    usleep(10000);
  }
  return false;
}

TEST(IsDeliveredTwiceTest, OnlyInterruptsAndTerminationsEndAtOnce) {
  EXPECT_TRUE(IsDeliveredTwice(SIGTERM, SIGTERM, milliseconds(100)));
  EXPECT_FALSE(IsDeliveredTwice(SIGTERM, SIGTERM, seconds(2)));
  EXPECT_FALSE(IsDeliveredTwice(SIGTERM, SIGINT, milliseconds(100)));
  EXPECT_FALSE(IsDeliveredTwice(SIGINT, SIGINT, milliseconds(100)));
  EXPECT_FALSE(IsDeliveredTwice(SIGINT, SIGTERM, milliseconds(100)));
  // A scheduler's warning, and what it warned of.
  EXPECT_TRUE(IsDeliveredTwice(SIGUSR1, SIGTERM, seconds(60)));
  EXPECT_TRUE(IsDeliveredTwice(SIGHUP, SIGTERM, milliseconds(1)));
  for (const int second : {SIGUSR1, SIGUSR2, SIGHUP}) {
    EXPECT_TRUE(IsDeliveredTwice(SIGTERM, second, seconds(60)));
  }
}

TEST(StopSignalsTest, EachOfThemStopsARun) {
  for (const int signal : kStopSignals) {
    SCOPED_TRACE(SignalName(signal));
    const auto send = [signal](pid_t pid) { kill(pid, signal); };
    Result result = Launch(
        2, [](const RankInfo& info) { return UntilStopped(); }, send);
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_THAT(result.text, HasSubstr(SignalName(signal) + ": stopping; "));
    EXPECT_THAT(result.text, HasSubstr("\nstopped after step 3\n"));
    EXPECT_THAT(result.text, Not(HasSubstr("ERROR")));
    result = Capture(
        [] {
          return RunSingleRank(RankInfo(), [](const RankInfo& info) {
            RanksHaveMet();
            return UntilStopped();
          });
        },
        1, send);
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_THAT(result.text, HasSubstr("stopping; "));
  }
}

// The warning is followed by SIGTERM, which isn't a second wish.
TEST(StopSignalsTest, SigtermAfterAWarningLetsItSave) {
  for (const bool launched : {true, false}) {
    const RankMain slow = [](const RankInfo& info) {
      RanksHaveMet();
      Ready();
      // sleeps: polls
      while (StopRequested() == 0) usleep(1000);
      // sleeps: a slow save
      usleep(500000);  // saves
      return absl::CancelledError("stopped after step 3");
    };
    const Result result = Capture(
        [&] {
          return launched ? LaunchRanks(1, slow)
                          : RunSingleRank(RankInfo(), slow);
        },
        1,
        [](pid_t pid) {
          kill(pid, SIGUSR1);
          usleep(100000);
          kill(pid, SIGTERM);
        });
    EXPECT_EQ(result.exit_code, 128 + SIGUSR1);
    EXPECT_THAT(result.text, HasSubstr("stopped after step 3\n"));
  }
}

// nohup
TEST(StopSignalsTest, AHangUpThatIsIgnoredStaysSo) {
  const Result result = Capture(
      [] {
        signal(SIGHUP, SIG_IGN);
        return LaunchRanks(2, [](const RankInfo& info) {
          if (info.rank == 0) raise(SIGHUP);
          return UntilStopped();
        });
      },
      2,
      [](pid_t pid) {
        kill(pid, SIGHUP);
        usleep(100000);
        kill(pid, SIGTERM);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.text, Not(HasSubstr("SIGHUP")));
}

// `trainer | head`
TEST(SignalsTest, AClosedPipeKillsNobody) {
  for (const bool launched : {true, false}) {
    const Result result = Capture([&] {
      int ends[2];
      if (pipe(ends) != 0) return 1;
      close(ends[0]);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      close(ends[1]);
      const RankMain talks = [](const RankInfo& info) {
        for (int i = 0; i < 100; ++i) {
          fputs("progress\n", stdout);
          fflush(stdout);
          fputs("trouble\n", stderr);
          // sleeps: a slow talker
          usleep(1000);
        }
        return absl::OkStatus();
      };
      return launched ? LaunchRanks(3, talks)
                      : RunSingleRank(RankInfo(), talks);
    });
    EXPECT_EQ(result.exit_code, 0);
  }
}

// Ctrl-Z and fg.
TEST(SignalsTest, StopsAndWakesAllRanks) {
  bool stopped = false;
  bool woken = false;
  const Result result = Launch(
      3, [](const RankInfo& info) { return UntilStopped(); },
      [&](pid_t pid) {
        std::vector<pid_t> all = ChildrenOf(pid);
        EXPECT_EQ(all.size(), 3);
        all.push_back(pid);
        kill(pid, SIGTSTP);
        stopped = AwaitStopped(all, true);
        kill(pid, SIGCONT);
        woken = AwaitStopped(all, false);
        kill(pid, SIGTERM);
      });
  EXPECT_TRUE(stopped);
  EXPECT_TRUE(woken);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.text, HasSubstr("stopped after step 3\n"));
}

// It couldn't save.
TEST(SignalsTest, SigtermWakesARankThatIsStopped) {
  const Result result = Launch(
      2, [](const RankInfo& info) { return UntilStopped(); },
      [](pid_t pid) {
        const std::vector<pid_t> ranks = ChildrenOf(pid);
        ASSERT_EQ(ranks.size(), 2);
        kill(ranks[1], SIGSTOP);
        EXPECT_TRUE(AwaitStopped({ranks[1]}, true));
        kill(pid, SIGTERM);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.text, HasSubstr("\nstopped after step 3\n"));
  EXPECT_THAT(result.text, Not(HasSubstr("is stopped (SIGSTOP)")));
}

TEST(SignalsTest, ARankThatStaysStoppedDoesNotKeepTheRun) {
  const Result result = Launch(
      2,
      [](const RankInfo& info) -> absl::Status {
        if (info.rank == 0) return UntilStopped();
        Ready();
        // sleeps: polls
        while (StopRequested() == 0) usleep(1000);
        while (true) raise(SIGSTOP);
      },
      [](pid_t pid) { kill(pid, SIGTERM); });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.text,
              HasSubstr("ERROR: [rank 1] is stopped (SIGSTOP) and can't save"));
  EXPECT_LT(result.seconds, 80);
}

std::string Note(int signal, int64_t now, int64_t step_ms) {
  ReadGrace();
  char note[512];
  return std::string(note, StopNote(signal, now, step_ms, note, sizeof(note)));
}

TEST(StopNoteTest, TellsHowLongIsLeft) {
  unsetenv("CAPSTAN_STOP_GRACE");
  unsetenv("SLURM_JOB_END_TIME");
  EXPECT_EQ(Note(SIGTERM, 1000, 50000),
            "stopping; a second signal stops at once");
  EXPECT_EQ(Note(SIGUSR1, 1000, 50000), "stopping; SIGINT stops at once");
  setenv("SLURM_JOB_END_TIME", "1120", 1);
  EXPECT_EQ(Note(SIGTERM, 1000, 119000),
            "stopping; the job ends in 120 s at the latest; a second signal "
            "stops at once");
  EXPECT_THAT(Note(SIGTERM, 1000, 120001),
              HasSubstr("a step takes 121 s, so that this one may be lost; "));
  EXPECT_THAT(Note(SIGTERM, 1120, -1),
              HasSubstr("the job's time is up, and SLURM kills it after its "
                        "KillWait, by default 30 s; "));
  setenv("CAPSTAN_STOP_GRACE", "25", 1);
  EXPECT_THAT(Note(SIGTERM, 1000, 30000),
              HasSubstr("it is killed in 25 s; a step takes 30 s"));
  setenv("CAPSTAN_STOP_GRACE", "soon", 1);
  unsetenv("SLURM_JOB_END_TIME");
  EXPECT_EQ(Note(SIGTERM, 1000, 1), "stopping; a second signal stops at once");
  // Cut, not overrun.
  char small[9];
  EXPECT_EQ(StopNote(SIGTERM, 0, 0, small, sizeof(small)), sizeof(small));
}

}  // namespace
}  // namespace capstan
