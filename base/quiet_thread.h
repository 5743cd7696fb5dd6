// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_QUIET_THREAD_H_
#define CAPSTAN_BASE_QUIET_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <thread>
#include <utility>

namespace capstan {

// Starts a thread with all signals blocked: they are for the other threads.
inline std::thread QuietThread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_QUIET_THREAD_H_
