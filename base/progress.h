// SPDX-License-Identifier: Apache-2.0
//
// Signs of life within long activities, which the watchdog looks for
// (cluster/watch): a unit computed, a piece of a file written.
#ifndef CAPSTAN_BASE_PROGRESS_H_
#define CAPSTAN_BASE_PROGRESS_H_

#include <cstdint>

namespace capstan {

// A few nanoseconds. Thread-safe.
void CountProgress();

// How often this process has called it.
uint64_t ProgressCount();

}  // namespace capstan

#endif  // CAPSTAN_BASE_PROGRESS_H_
