// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_EXIT_GUARD_H_
#define CAPSTAN_TRAINER_SESSION_EXIT_GUARD_H_

#include <pthread.h>
#include <sys/types.h>

#include <atomic>

#include "trainer/session/session.h"

namespace capstan {

// While it lives, names the plugin whose code calls exit(), which would
// otherwise end the process without a word, perhaps as if all had gone well.
// One at a time.
class ExitGuard {
 public:
  explicit ExitGuard(const Session* session);
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;

 private:
  static void OnExit(int code, void*);

  static std::atomic<const ExitGuard*> current_;

  const Session& session_;
  const pid_t pid_;
  const pthread_t thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EXIT_GUARD_H_
