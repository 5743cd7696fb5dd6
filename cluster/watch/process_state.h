// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_WATCH_PROCESS_STATE_H_
#define CAPSTAN_CLUSTER_WATCH_PROCESS_STATE_H_

#include <sys/types.h>

#include <cstdint>
#include <map>

namespace capstan {

enum class ProcessState : int32_t {
  kUnknown,
  kComputing,  // or would, if it got a core
  kWaiting,    // in the system
  kStopped,    // by a signal
  kTraced,     // by a debugger
  kGone,
};

// A line of /proc/PID/stat.
struct ProcessLook {
  char state = 'X';          // proc(5)'s; X: there is no such process
  uint64_t start_ticks = 0;  // when it began
  uint64_t cpu_ticks = 0;    // that all of its threads have used
};

ProcessLook LookAtProcess(pid_t pid);

// Tells from two looks whether a process computes. Used by one thread.
class ProcessWatch {
 public:
  // Looks at a process at `now_ns`; `start_ticks` distinguishes it from a later
  // one with the same number.
  ProcessState Look(pid_t pid, uint64_t start_ticks, int64_t now_ns);

 private:
  struct Sample {
    int64_t at_ns = 0;
    uint64_t cpu_ticks = 0;
    ProcessState state = ProcessState::kUnknown;
  };
  std::map<pid_t, Sample> samples_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_PROCESS_STATE_H_
