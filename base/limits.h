// SPDX-License-Identifier: Apache-2.0
//
// What the system lets a process take (ulimit). Meeting a limit is an error
// that names it, and not the end by a signal.
#ifndef CAPSTAN_BASE_LIMITS_H_
#define CAPSTAN_BASE_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"

namespace capstan {

// Threads, or processes, that take turns on a core; beyond that many they gain
// nothing, and are a mistake.
constexpr int kMostThreadsPerCore = 64;

// Behind the text of `error`, an errno value, if one of this process's limits
// may be why: "; the limit of a file is 65536 bytes (ulimit -f)". Else "".
std::string LimitText(int error);

// Bytes of address space that a process may take; nullopt: no limit.
absl::optional<int64_t> MostAddressSpace();

// Seconds of CPU time that a process may take; nullopt: as many as it likes.
absl::optional<int64_t> MostCpuSeconds();
// "the 60 s of CPU time that a process may take (ulimit -t)"; requires
// MostCpuSeconds().
std::string CpuLimitText();

// The first call of the program. From now on a file that becomes too large is
// an error of the call that writes it, and the end of the CPU time comes as
// SIGXCPU some time before the kernel kills the process; until another handler
// is set, that is told and ends it with exit code 1. Children that are forked
// have that, too; programs that they start don't.
void MeetLimits();

// An error if OMP_NUM_THREADS asks for more threads than could be of use on
// this machine, or than it can have.
absl::Status CheckThreads();

}  // namespace capstan

#endif  // CAPSTAN_BASE_LIMITS_H_
