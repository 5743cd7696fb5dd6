// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_SIGNALS_H_
#define CAPSTAN_TRAINER_LAUNCHER_SIGNALS_H_

#include <signal.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace capstan {

// What asks a run to save and stop. SIGUSR1, SIGUSR2 and SIGHUP are schedulers'
// and terminals' ways to say so; SIGHUP that is ignored (nohup) stays so.
constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// What a second of them does to a rank.
enum class SecondSignal {
  kIgnored,      // the launcher kills the rank
  kEndsProcess,  // with 128 + signal, for ranks without our launcher
};

// Whether a second signal, so soon after the first, isn't meant to end the run
// at once: only SIGINT and SIGTERM are. SLURM signals a task, and then all
// processes of its step; schedulers send SIGTERM some time after the signal
// that warns of it.
bool IsDeliveredTwice(int first, int second,
                      std::chrono::nanoseconds since_first);

// From now on kStopSignals set StopRequested's result, even if they were
// ignored (as shells do for background jobs), and SIGPIPE does nothing.
void InstallStopHandlers(SecondSignal second);

// Writing to a closed pipe is an error from now on, and doesn't end the
// process; programs that it starts aren't concerned.
void IgnorePipeSignals();

// From now on the first of them ends the process with 128 + signal, until
// RanksHaveMet: a forked rank that waits for other hosts has nothing to save.
void EndBeforeRanksHaveMet();

// While alive, kStopSignals set StopRequested's result.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  std::vector<std::pair<int, struct sigaction>> old_;
};

// "SIGTERM" for 15; "signal N" for signals without a common name.
std::string SignalName(int signal);

// While alive, kStopSignals, SIGCHLD, SIGTSTP and SIGCONT are read from fd()
// instead of being delivered to this thread. One at a time, in a
// single-threaded process.
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
  std::vector<std::pair<int, struct sigaction>> old_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_SIGNALS_H_
