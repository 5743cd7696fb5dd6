// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_LAUNCH_SIGNALS_H_
#define CAPSTAN_CLUSTER_LAUNCH_SIGNALS_H_

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace capstan {

// The signals that ask a run to save and stop. Schedulers and terminals send
// SIGUSR1, SIGUSR2 and SIGHUP, the kernel SIGXCPU (MeetLimits). An ignored
// SIGHUP (nohup) stays ignored.
constexpr int kStopSignals[] = {SIGINT,  SIGTERM, SIGHUP,
                                SIGUSR1, SIGUSR2, SIGXCPU};

// The effect of a second stop signal on a rank.
enum class SecondSignal {
  kIgnored,      // the launcher kills the rank
  kEndsProcess,  // with 128 + signal, for ranks without our launcher
};

// Whether a second signal so soon after the first is only a repetition, not
// meant to end the run at once. Only SIGINT and SIGTERM end it: SLURM signals a
// task and then all processes of its step, and schedulers send SIGTERM some
// time after a warning signal.
bool IsDeliveredTwice(int first, int second,
                      std::chrono::nanoseconds since_first);

// Makes kStopSignals set StopRequested's result, even if they were ignored (as
// shells do for background jobs), and ignores SIGPIPE.
void InstallStopHandlers(SecondSignal second);

// Makes writing to a closed pipe an error that doesn't end the process.
// Programs that it starts aren't affected.
void IgnorePipeSignals();

// Makes the first stop signal end the process with 128 + signal until
// RanksHaveMet, since a forked rank that waits for other hosts has nothing to
// save.
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

// The time between the signal by which a scheduler asks a run to stop and the
// one that kills it, if the scheduler tells.

// Reads the environment for StopNote: CAPSTAN_STOP_GRACE, the seconds from
// signal to kill (a pod's terminationGracePeriodSeconds), and
// SLURM_JOB_END_TIME, the job's end in seconds of the Unix epoch.
void ReadGrace();

// Writes the message of a run that `signal` asks to stop at `now` (Unix
// seconds): how much time is left, whether that is enough for a step, and how
// to stop at once. `step_ms` is the time of its last step (negative: unknown).
// Writes at most `size` characters, without an end of line, and returns how
// many. Async-signal-safe.
size_t StopNote(int signal, int64_t now, int64_t step_ms, char* out,
                size_t size);

// Returns that message as of now, after the signal's name: "SIGTERM: stopping;
// ..".
std::string StopText(int signal);

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
  // Returns the next pending signal, or 0; doesn't block.
  int Next() const;
  // Unblocks the signals in a child, once it has set its own handlers.
  void RestoreInChild() const;

 private:
  int fd_;
  sigset_t old_mask_;
  std::vector<std::pair<int, struct sigaction>> old_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_SIGNALS_H_
