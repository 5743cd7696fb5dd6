// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_PROCESS_MEMORY_H_
#define CAPSTAN_TRAINER_MEMORY_PROCESS_MEMORY_H_

#include <c10/core/Device.h>

#include <cstdint>

namespace capstan {

// This process's host memory as the kernel counts it, in bytes; zeros where it
// doesn't.
struct ProcessMemory {
  int64_t resident = 0;  // now: VmRSS
  int64_t peak = 0;      // the most so far: VmHWM
  // Of `resident` what is in no file, and so is a forked child's, too: RssAnon.
  int64_t anonymous = 0;
};
ProcessMemory ReadProcessMemory();

// The most that this process's tensors have held on a GPU, in bytes.
int64_t PeakGpuMemory(c10::Device gpu);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_PROCESS_MEMORY_H_
