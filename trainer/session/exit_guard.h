// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_EXIT_GUARD_H_
#define CAPSTAN_TRAINER_SESSION_EXIT_GUARD_H_

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <memory>

#include "trainer/session/session.h"

namespace capstan {

// While it lives, reports the plugin whose code ends the process: by exit(),
// which would be silent and might look like success, or by a crash (SIGSEGV,
// SIGBUS, SIGFPE, SIGILL, SIGABRT), which then proceeds. At most one may exist,
// created by the thread that trains.
class ExitGuard {
 public:
  explicit ExitGuard(const Session* session);
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;

 private:
  static void OnExit(int code, void*);
  static void OnCrash(int signal, siginfo_t* info, void*);
  // Reports the crash on standard error, with the frames of this thread that
  // are in plugins' libraries. Async-signal-safe.
  void TellOfCrash(int signal) const;

  static std::atomic<const ExitGuard*> current_;

  const Session& session_;
  const pid_t pid_;
  const pthread_t thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EXIT_GUARD_H_
