// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "base/collective_label.h"
#include "base/exit_codes.h"
#include "base/progress.h"
#include "cluster/watch/activity_times.h"
#include "cluster/watch/collective_log.h"
#include "cluster/watch/ledger.h"
#include "cluster/watch/stacks.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ActivityTimesTest, LearnsItsLimits) {
  ActivityTimes times(/*floor_ns=*/100, /*ceiling_ns=*/1000);
  EXPECT_EQ(times.Limit("step"), 1000) << "never done";
  times.Add("step", 2);
  EXPECT_EQ(times.Limit("step"), 100);
  EXPECT_EQ(times.Limit("saving"), 1000);
  times.Add("step", 50);
  EXPECT_EQ(times.Limit("step"), 100) << "one is none";
  times.Add("step", 60);
  EXPECT_EQ(times.Limit("step"), 400);
  times.Add("step", 300);
  times.Add("step", 300);
  EXPECT_EQ(times.Limit("step"), 1000);
  // What was long ago is forgotten.
  for (size_t i = 0; i < ActivityTimes::kRemembered; ++i) times.Add("step", 20);
  EXPECT_EQ(times.Limit("step"), 160);
  times.Add("step", int64_t{1} << 62);
  times.Add("step", int64_t{1} << 62);
  EXPECT_EQ(times.Limit("step"), 1000) << "without overflow";
}

__attribute__((noinline)) void SpinsUntil(const std::atomic<bool>& stop,
                                          std::atomic<bool>* spins = nullptr) {
  if (spins != nullptr) *spins = true;
  while (!stop) {
  }
}

TEST(StacksTest, NameTheFunctions) {
  PrepareStacks();
  std::atomic<bool> stop{false}, there{false};
  std::thread spins([&] { SpinsUntil(stop, &there); });
  while (!there) std::this_thread::yield();
  std::string stacks;
  std::thread looks([&] { stacks = StacksOfThreads(); });
  looks.join();
  stop = true;
  spins.join();
  EXPECT_THAT(stacks, HasSubstr("SpinsUntil"));
  EXPECT_THAT(stacks, HasSubstr("(main):"));
  EXPECT_THAT(stacks, HasSubstr("StacksTest_NameTheFunctions")) << stacks;
}

// A thread that waits for its vfork's child answers when that has ended.
TEST(StacksTest, ALateAnswerIsNobodyElses) {
  PrepareStacks();
  int begun[2];
  int end[2];
  ASSERT_EQ(pipe(begun), 0);
  ASSERT_EQ(pipe(end), 0);
  std::thread late([&] {
    const pid_t child = vfork();
    char byte = 0;
    if (child == 0) {
      const bool told =
          write(begun[1], "", 1) == 1 && read(end[0], &byte, 1) == 1;
      _exit(told ? 0 : 1);
    }
    waitpid(child, nullptr, 0);
  });
  char byte = 0;
  ASSERT_EQ(read(begun[0], &byte, 1), 1);
  std::string stacks;
  std::thread([&] { stacks = StacksOfThreads(); }).join();
  EXPECT_THAT(stacks, HasSubstr("doesn't answer"));
  ASSERT_EQ(write(end[1], "", 1), 1);
  std::atomic<bool> stop{false};
  std::thread spins([&] { SpinsUntil(stop); });
  late.join();
  std::thread([&] { stacks = StacksOfThreads(); }).join();
  stop = true;
  spins.join();
  EXPECT_THAT(stacks, HasSubstr("SpinsUntil"));
  EXPECT_THAT(stacks, Not(HasSubstr("doesn't answer")));
  for (const int fd : {begun[0], begun[1], end[0], end[1]}) close(fd);
}

TEST(StacksTest, AThreadThatTakesNoSignals) {
  PrepareStacks();
  std::atomic<bool> stop{false};
  std::thread deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    SpinsUntil(stop);
  });
  std::string stacks;
  std::thread looks([&] { stacks = StacksOfThreads(); });
  looks.join();
  stop = true;
  deaf.join();
  EXPECT_THAT(stacks, HasSubstr("takes no signals"));
}

// What is written to a pipe until its last writer is gone. Closes it.
std::string ReadAll(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t n; (n = read(fd, bytes, sizeof(bytes))) > 0;) {
    text.append(bytes, static_cast<size_t>(n));
  }
  close(fd);
  return text;
}

struct Ended {
  int status = 0;
  std::string err;
};

// A rank alone, in a child.
class Child {
 public:
  explicit Child(void (*run)()) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      close(ends[1]);
      alarm(60);
      run();
      _exit(0);
    }
    close(ends[1]);
    err_ = ends[0];
  }

  // What it says and how it ends. Once.
  Ended Wait() {
    Ended ended;
    ended.err = ReadAll(err_);
    EXPECT_EQ(waitpid(pid_, &ended.status, 0), pid_);
    return ended;
  }

 private:
  pid_t pid_ = -1;
  int err_ = -1;
};

int Reports(const std::string& err) {
  int reports = 0;
  for (size_t at = 0; (at = err.find("WARNING", at)) != std::string::npos;
       ++at) {
    ++reports;
  }
  return reports;
}

WatchOptions Fast() {
  WatchOptions options;
  options.floor_seconds = 0.5;
  options.ceiling_seconds = 1.0;
  return options;
}

void Sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// ---- What the ranks of WatchdogTest do, each alone.

void DoesNotMove() {
  auto watchdog = Watchdog::Start(Fast());
  LogPhase("forward");
  const Watchdog::Activity activity(watchdog->get(), "step", 13);
  Sleep(50.0);
}

void Moves() {
  WatchOptions options = Fast();
  options.ceiling_seconds = 2.0;
  auto watchdog = Watchdog::Start(options);
  const Watchdog::Activity activity(watchdog->get(), "saving", 13);
  for (int i = 0; i < 80; ++i) {
    Sleep(0.1);
    CountProgress();
  }
}

void DoesNotMoveForAWhile() {
  WatchOptions options = Fast();
  options.abort = false;
  auto watchdog = Watchdog::Start(options);
  const Watchdog::Activity activity(watchdog->get(), "step", 13);
  Sleep(5.0);
}

void StaysWithinItsLimits() {
  WatchOptions options;
  options.floor_seconds = 2.0;
  options.ceiling_seconds = 4.0;
  auto watchdog = Watchdog::Start(options);
  const Watchdog::Activity outer(watchdog->get(), "finishing", 13);
  // Together beyond the limit, none of them alone; the outer one's clock
  // stands still.
  for (int i = 0; i < 12; ++i) {
    const Watchdog::Activity inner(watchdog->get(), "evaluation", 13);
    Sleep(0.5);
  }
}

void IsStopped() {
  const pid_t self = getpid();
  if (fork() == 0) {
    Sleep(0.3);
    kill(self, SIGSTOP);
    Sleep(6.0);
    kill(self, SIGCONT);
    _exit(0);
  }
  WatchOptions options = Fast();
  options.ceiling_seconds = 3.0;
  auto watchdog = Watchdog::Start(options);
  const Watchdog::Activity activity(watchdog->get(), "step", 13);
  // The first ends with the stop; then the watchdog looks several times.
  Sleep(0.6);
  Sleep(0.5);
}

// ---- Ranks that are processes, on hosts that aren't.

struct RunEnd {
  std::string err;
  std::vector<int> statuses;  // waitpid's, by rank
};

// Forks a rank for each of `hosts`, the name of its host, which join their
// ledgers and call `rank_main`.
class Ranks {
 public:
  Ranks(const std::vector<std::string>& hosts, double ceiling_seconds,
        void (*rank_main)(int rank)) {
    const int size = static_cast<int>(hosts.size());
    WatchOptions options = Fast();
    options.ceiling_seconds = ceiling_seconds;
    std::string folder = testing::TempDir() + "/store_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        alarm(60);
        setenv("CAPSTAN_HOST_ID", hosts[rank].c_str(), 1);
        WantLedgers();
        const auto store =
            c10::make_intrusive<c10d::FileStore>(folder + "/store", size);
        JoinLedgers(rank, size, store);
        // None stops itself before the others have joined.
        store->add("joined", 1);
        while (store->add("joined", 0) < size) Sleep(0.01);  // sleeps: polls
        auto watchdog = Watchdog::Start(options);
        LogPhase("forward");
        {
          const Watchdog::Activity activity(watchdog->get(), "step", 13);
          rank_main(rank);
        }
        watchdog->reset();
        _exit(0);
      }
      ranks_.push_back(child);
    }
    close(ends[1]);
    err_ = ends[0];
  }

  // Waits for all; kills those that are stopped once the first has ended.
  // Once.
  RunEnd Wait() {
    RunEnd run;
    run.statuses.resize(ranks_.size());
    EXPECT_EQ(waitpid(ranks_[0], &run.statuses[0], 0), ranks_[0]);
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      siginfo_t stopped = {};
      waitid(P_PID, ranks_[rank], &stopped, WSTOPPED | WNOHANG | WNOWAIT);
      if (stopped.si_pid != 0) kill(ranks_[rank], SIGKILL);
      EXPECT_EQ(waitpid(ranks_[rank], &run.statuses[rank], 0), ranks_[rank]);
    }
    run.err = ReadAll(err_);
    return run;
  }

 private:
  std::vector<pid_t> ranks_;
  int err_ = -1;
};

// In the same all-reduce for ever.
void WaitForOthers() {
  const CollectiveLog log(/*sees_ends=*/true);
  const CollectiveLabel label("bucket", 3);
  log.Started(log.Issued("all-reduce", 25 << 20));
  Sleep(50.0);
}

void OneIsLate(int rank) {
  if (rank != 1) WaitForOthers();
  Sleep(50.0);
}

void TheFirstIsStopped(int rank) {
  if (rank == 0) raise(SIGSTOP);
  WaitForOthers();
}

void TheLastIsLate(int rank) {
  if (rank != 3) WaitForOthers();
  Sleep(50.0);
}

void AHostIsStopped(int rank) {
  Sleep(2.0);
  if (rank >= 2) raise(SIGSTOP);
  WaitForOthers();
}

// The processes of all tests below, which do nothing but wait: all are started
// when the first test asks for its own.
struct Processes {
  Child does_not_move{DoesNotMove};
  Child moves{Moves};
  Child does_not_move_for_a_while{DoesNotMoveForAWhile};
  Child stays_within_its_limits{StaysWithinItsLimits};
  Child is_stopped{IsStopped};
  Ranks one_is_late{{"a", "a", "a"}, 1.0, OneIsLate};
  Ranks the_first_is_stopped{{"a", "a"}, 1.0, TheFirstIsStopped};
  Ranks the_last_is_late{{"a", "a", "b", "b"}, 4.0, TheLastIsLate};
  Ranks a_host_is_stopped{{"a", "a", "b", "b"}, 4.0, AHostIsStopped};
};

Processes& Started() {
  static auto* const processes = new Processes;
  return *processes;
}

TEST(WatchdogTest, EndsWhatDoesNotMove) {
  const Ended ended = Started().does_not_move.Wait();
  ASSERT_TRUE(WIFEXITED(ended.status));
  EXPECT_EQ(WEXITSTATUS(ended.status), kHungExitCode);
  EXPECT_THAT(ended.err, HasSubstr("WARNING: no step for "));
  EXPECT_THAT(ended.err, HasSubstr("s (limit 1 s): rank 0 is late: in forward "
                                   "of step 13 for "));
  EXPECT_THAT(ended.err, HasSubstr("stacks of rank 0:"));
  EXPECT_THAT(ended.err, HasSubstr("exit code 75"));
}

TEST(WatchdogTest, WaitsForWhatMoves) {
  const Ended ended = Started().moves.Wait();
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("WARNING: saving takes "));
}

TEST(WatchdogTest, OnlyReportsIfItShall) {
  const Ended ended = Started().does_not_move_for_a_while.Wait();
  EXPECT_EQ(ended.status, 0) << ended.err;
  // At 1, 2 and 4 s.
  EXPECT_GE(Reports(ended.err), 2);
  EXPECT_LE(Reports(ended.err), 3);
}

TEST(WatchdogTest, ActivitiesWithinTheirLimits) {
  const Ended ended = Started().stays_within_its_limits.Wait();
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.err, "");
}

// A laptop that sleeps, a job that is suspended: nobody is late.
TEST(WatchdogTest, AStopOfAllIsNoAlarm) {
  const Ended ended = Started().is_stopped.Wait();
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(ended.err, Not(HasSubstr("WARNING")));
}

void ExpectHung(const RunEnd& run, const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    EXPECT_TRUE(WIFEXITED(run.statuses[rank]) &&
                WEXITSTATUS(run.statuses[rank]) == kHungExitCode)
        << "rank " << rank << " ended with " << run.statuses[rank];
  }
}

TEST(RanksTest, TheLateOneIsNamedOnce) {
  const RunEnd run = Started().one_is_late.Wait();
  EXPECT_THAT(run.err, HasSubstr("rank 1 is late: in forward of step 13 for "));
  EXPECT_THAT(run.err, HasSubstr("ranks 0, 2 wait in all-reduce 1 of bucket 3 "
                                 "(25.0 MiB)"));
  EXPECT_THAT(run.err, HasSubstr("stacks of rank 1:"));
  EXPECT_THAT(run.err, Not(HasSubstr("stacks of rank 0:")));
  EXPECT_EQ(Reports(run.err), 1) << run.err;
  ExpectHung(run, {0, 1, 2});
}

TEST(RanksTest, WithoutTheFirstTheNextKeepsWatch) {
  const RunEnd run = Started().the_first_is_stopped.Wait();
  EXPECT_THAT(run.err, HasSubstr("rank 0 is late: in forward of step 13 for "));
  EXPECT_THAT(run.err, HasSubstr("stopped (SIGSTOP); rank 1 waits in"));
  ExpectHung(run, {1});
  EXPECT_TRUE(WIFSIGNALED(run.statuses[0])) << "a stopped rank doesn't stay";
}

TEST(RanksTest, AnotherHostsRankIsNamed) {
  const RunEnd run = Started().the_last_is_late.Wait();
  EXPECT_THAT(run.err, HasSubstr("rank 3 is late: in forward of step 13 for "));
  EXPECT_THAT(run.err, HasSubstr("ranks 0, 1, 2 wait in all-reduce 1"));
  EXPECT_THAT(run.err, HasSubstr("stacks of rank 3:"));
  EXPECT_EQ(Reports(run.err), 1) << run.err;
  ExpectHung(run, {0, 1, 2, 3});
}

TEST(RanksTest, AHostThatDoesNotAnswer) {
  const RunEnd run = Started().a_host_is_stopped.Wait();
  EXPECT_THAT(run.err, HasSubstr("host b (ranks 2, 3) doesn't answer since "));
  EXPECT_THAT(run.err, HasSubstr("ranks 0, 1 wait in all-reduce 1"));
  EXPECT_EQ(Reports(run.err), 1) << run.err;
  ExpectHung(run, {0, 1});
}

}  // namespace
}  // namespace capstan
