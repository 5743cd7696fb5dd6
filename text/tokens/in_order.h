// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENS_IN_ORDER_H_
#define CAPSTAN_TEXT_TOKENS_IN_ORDER_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"

namespace capstan::text {

// Calls make(0) to make(n - 1) on `threads` threads and passes the results in
// order to take() on the calling thread. Buffers at most a few results per
// thread. Stops at the first error or exception and returns it, after all
// threads have ended. With one thread none is started.
template <typename T>
absl::Status InOrder(int threads, int64_t n,
                     const std::function<absl::StatusOr<T>(int64_t)>& make,
                     const std::function<absl::Status(T)>& take) {
  const auto guarded = [&make](int64_t i) -> absl::StatusOr<T> {
    try {
      return make(i);
    } catch (...) {
      return CurrentExceptionToStatus();
    }
  };
  if (threads <= 1) {
    for (int64_t i = 0; i < n; ++i) {
      CAPSTAN_ASSIGN_OR_RETURN(T made, guarded(i));
      CAPSTAN_RETURN_IF_ERROR(take(std::move(made)));
    }
    return absl::OkStatus();
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, absl::StatusOr<T>> waiting;
  int64_t next = 0;   // next index to make
  int64_t taken = 0;  // results before it are taken
  bool stop = false;
  const auto work = [&] {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [&] {
        return stop || next == n || next < taken + 4 * threads;
      });
      if (stop || next == n) return;
      const int64_t i = next++;
      lock.unlock();
      absl::StatusOr<T> made = guarded(i);
      lock.lock();
      waiting.emplace(i, std::move(made));
      changed.notify_all();
    }
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < threads && i < n; ++i) workers.emplace_back(work);
  absl::Status status;
  while (status.ok() && taken < n) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return waiting.count(taken) > 0; });
    absl::StatusOr<T> made = std::move(waiting.at(taken));
    waiting.erase(taken);
    ++taken;
    lock.unlock();
    changed.notify_all();
    status = made.ok() ? take(*std::move(made)) : made.status();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    stop = true;
  }
  changed.notify_all();
  for (std::thread& worker : workers) worker.join();
  return status;
}

}  // namespace capstan::text

#endif  // CAPSTAN_TEXT_TOKENS_IN_ORDER_H_
