// SPDX-License-Identifier: Apache-2.0
//
// For libc_*.cc, which define functions of libc: the real ones serve whoever
// isn't simulated.
#ifndef CAPSTAN_TESTING_SIM_REAL_H_
#define CAPSTAN_TESTING_SIM_REAL_H_

#include <dlfcn.h>
#include <errno.h>

#include "testing/sim/world.h"

// Within the definition of NAME, goes to the real one outside of fibers.
#define SIM_REAL(name, ...)                                           \
  do {                                                                \
    if (::capstan::sim::Self() == nullptr) {                          \
      static const auto real =                                        \
          reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name)); \
      return real(__VA_ARGS__);                                       \
    }                                                                 \
  } while (false)

namespace capstan::sim {

// A negative errno becomes errno and -1.
template <typename Number>
Number Result(Number value) {
  if (value >= 0) return value;
  errno = static_cast<int>(-value);
  return -1;
}

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTING_SIM_REAL_H_
