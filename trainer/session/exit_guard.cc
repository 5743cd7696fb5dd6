// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/exit_guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <iostream>

namespace capstan {

std::atomic<const ExitGuard*> ExitGuard::current_{nullptr};

ExitGuard::ExitGuard(const Session* session)
    : session_(*session), pid_(getpid()), thread_(pthread_self()) {
  static const int installed = on_exit(&OnExit, nullptr);
  (void)installed;
  current_ = this;
}

ExitGuard::~ExitGuard() { current_ = nullptr; }

void ExitGuard::OnExit(int code, void*) {
  const ExitGuard* const guard = current_;
  if (guard == nullptr || guard->pid_ != getpid()) return;
  const bool on_main = pthread_equal(guard->thread_, pthread_self()) != 0;
  // Our launcher prints an error of its own.
  const bool alone = guard->session_.job.output_dir.empty();
  std::cerr << (alone ? "ERROR: " : "")
            << ExitText(guard->session_, code, on_main) << std::endl;
  fflush(nullptr);
  // Static destructors would run beside threads that are still at work.
  _exit(code == 0 ? 1 : code);
}

}  // namespace capstan
