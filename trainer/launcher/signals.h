// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_SIGNALS_H_
#define CAPSTAN_TRAINER_LAUNCHER_SIGNALS_H_

#include <signal.h>

#include <string>

namespace capstan {

// What a second SIGINT or SIGTERM does to a rank.
enum class SecondSignal {
  kIgnored,      // a rank of our launcher, which kills it then
  kEndsProcess,  // a rank on its own leaves at once, with 128 + signal
};

// From here on SIGINT and SIGTERM set what StopRequested returns, even where
// they were ignored (a shell does that to what it runs in the background).
void InstallStopHandlers(SecondSignal second);

// While it lives, SIGINT and SIGTERM set what StopRequested returns.
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

// "SIGTERM" for 15; "signal N" for what has no common name.
std::string SignalName(int signal);

// While it lives, SIGINT, SIGTERM and SIGCHLD are not delivered to this thread
// but read from fd(). One at a time, in a process without other threads.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  // Readable when a signal has come.
  int fd() const { return fd_; }
  // The next signal that has come, or 0; does not block.
  int Next() const;
  // For a child: ends the block, after the child has set its own handlers.
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
