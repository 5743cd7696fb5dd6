// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_CONFINE_H_
#define CAPSTAN_BASE_CONFINE_H_

#include <cstdint>

#include "absl/types/span.h"

namespace capstan {

// What a forked child may take beyond what it begins with.
struct ChildLimits {
  int64_t bytes = int64_t{4} << 30;  // of address space
  int64_t cpu_seconds = 60;          // then SIGXCPU ends it
};

// The first call of a forked process of this program that reads what may crash
// its reader, or keep it busy for ever: a crash ends it without a core, what
// stops the run is not for it, and of the descriptors beyond standard error
// only `kept` stay open. May allocate; takes no other lock.
void ConfineChild(const ChildLimits& limits, absl::Span<const int> kept);

}  // namespace capstan

#endif  // CAPSTAN_BASE_CONFINE_H_
