// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_SIGNALS_H_
#define CAPSTAN_TRAINER_LAUNCHER_SIGNALS_H_

#include <signal.h>

#include <chrono>
#include <string>

namespace capstan {

// What a second SIGINT or SIGTERM does to a rank.
enum class SecondSignal {
  kIgnored,      // the launcher kills the rank
  kEndsProcess,  // with 128 + signal, for ranks without our launcher
};

// Whether that second signal, so soon after the first, is the same one: SLURM
// signals a task, and then all processes of its step.
bool IsDeliveredTwice(int first, int second,
                      std::chrono::nanoseconds since_first);

// From now on SIGINT and SIGTERM set StopRequested's result, even if they were
// ignored (as shells do for background jobs).
void InstallStopHandlers(SecondSignal second);

// From now on the first of them ends the process with 128 + signal, until
// RanksHaveMet: a forked rank that waits for other hosts has nothing to save.
void EndBeforeRanksHaveMet();

// While alive, SIGINT and SIGTERM set StopRequested's result.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction old_int_;
  struct sigaction old_term_;
};

// "SIGTERM" for 15; "signal N" for signals without a common name.
std::string SignalName(int signal);

// While alive, SIGINT, SIGTERM and SIGCHLD are read from fd() instead of being
// delivered to this thread. One at a time, in a single-threaded process.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  // Readable when a signal is pending.
  int fd() const { return fd_; }
  // The next pending signal, or 0; does not block.
  int Next() const;
  // Unblocks the signals in a child, once it has set its own handlers.
  void RestoreInChild() const;

 private:
  int fd_;
  sigset_t old_mask_;
  struct sigaction old_int_;
  struct sigaction old_term_;
  struct sigaction old_child_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_SIGNALS_H_
