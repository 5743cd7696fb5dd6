// SPDX-License-Identifier: Apache-2.0
//
// What there is of memory before a run begins.
#ifndef CAPSTAN_TRAINER_MEMORY_DEVICE_MEMORY_H_
#define CAPSTAN_TRAINER_MEMORY_DEVICE_MEMORY_H_

#include <cstdint>
#include <string>

namespace capstan {

// Host memory that can be had, in bytes: MemAvailable of /proc/meminfo, or what
// the limits of this process's control group and of those above it leave, if
// that is less. The largest number where neither is known. `proc` and `sys`
// stand for /proc and /sys; versions 1 and 2 of control groups.
int64_t AvailableHostMemory(const std::string& proc, const std::string& sys);
int64_t AvailableHostMemory();

// The least that is free on a GPU which CUDA_VISIBLE_DEVICES shows, in bytes,
// by `nvidia-smi` (this process must not touch the driver before it forks); the
// largest number where that doesn't say.
int64_t FreeGpuMemory();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_DEVICE_MEMORY_H_
