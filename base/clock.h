// SPDX-License-Identifier: Apache-2.0
//
// The machine's monotonic clock (std::chrono::steady_clock), shared by all its
// processes.
#ifndef CAPSTAN_BASE_CLOCK_H_
#define CAPSTAN_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace capstan {

inline double MonotonicSeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline int64_t MonotonicNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_CLOCK_H_
