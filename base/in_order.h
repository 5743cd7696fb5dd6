// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_IN_ORDER_H_
#define CAPSTAN_BASE_IN_ORDER_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/status.h"

namespace capstan {

// Calls make(next()) on `threads` threads until next() returns nullopt, and
// passes the results in order to take() on the calling thread. One thread at a
// time calls next(), which must not throw. Buffers at most a few results per
// thread. Stops at the first error or exception and returns it, after all
// threads have ended. With one thread none is started, unless there is a
// `poll`, which the calling thread calls at the beginning and every half
// second; its errors, too, stop all.
template <typename In, typename Out>
absl::Status MapInOrder(int threads,
                        const std::function<absl::optional<In>()>& next,
                        const std::function<absl::StatusOr<Out>(In)>& make,
                        const std::function<absl::Status(Out)>& take,
                        const std::function<absl::Status()>& poll = nullptr) {
  const auto guarded = [&make](In in) -> absl::StatusOr<Out> {
    try {
      return make(std::move(in));
    } catch (...) {
      return CurrentExceptionToStatus();
    }
  };
  if (threads <= 1 && !poll) {
    while (absl::optional<In> in = next()) {
      CAPSTAN_ASSIGN_OR_RETURN(Out made, guarded(*std::move(in)));
      CAPSTAN_RETURN_IF_ERROR(take(std::move(made)));
    }
    return absl::OkStatus();
  }
  threads = std::max(threads, 1);
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, absl::StatusOr<Out>> waiting;
  int64_t begun = 0;
  int64_t taken = 0;
  bool at_end = false;
  bool stop = false;
  const auto work = [&] {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(
          lock, [&] { return stop || at_end || begun < taken + 4 * threads; });
      if (stop || at_end) return;
      absl::optional<In> in = next();
      at_end = !in.has_value();
      if (!at_end) {
        const int64_t i = begun++;
        lock.unlock();
        absl::StatusOr<Out> made = guarded(*std::move(in));
        lock.lock();
        waiting.emplace(i, std::move(made));
      }
      changed.notify_all();
    }
  };
  std::vector<std::thread> workers;
  try {
    for (int i = 0; i < threads; ++i) workers.emplace_back(work);
  } catch (const std::system_error&) {
    if (workers.empty()) throw;  // else fewer will do
  }
  absl::Status status;
  constexpr std::chrono::milliseconds kPollInterval(500);
  auto next_poll = std::chrono::steady_clock::now();
  while (status.ok()) {
    std::unique_lock<std::mutex> lock(mutex);
    const auto ready = [&] {
      return waiting.count(taken) > 0 || (at_end && taken == begun);
    };
    if (!poll) {
      changed.wait(lock, ready);
    } else if (std::chrono::steady_clock::now() >= next_poll) {
      lock.unlock();
      status = poll();
      next_poll = std::chrono::steady_clock::now() + kPollInterval;
      continue;
    } else if (!changed.wait_until(lock, next_poll, ready)) {
      continue;
    }
    const auto found = waiting.find(taken);
    if (found == waiting.end()) break;
    absl::StatusOr<Out> made = std::move(found->second);
    waiting.erase(found);
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

// The same of make(0) to make(n - 1).
template <typename T>
absl::Status InOrder(int threads, int64_t n,
                     const std::function<absl::StatusOr<T>(int64_t)>& make,
                     const std::function<absl::Status(T)>& take,
                     const std::function<absl::Status()>& poll = nullptr) {
  int64_t i = 0;
  const auto next = [&]() -> absl::optional<int64_t> {
    if (i == n) return absl::nullopt;
    return i++;
  };
  return MapInOrder<int64_t, T>(static_cast<int>(std::min<int64_t>(threads, n)),
                                next, make, take, poll);
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_IN_ORDER_H_
