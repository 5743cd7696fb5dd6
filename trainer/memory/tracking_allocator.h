// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_TRACKING_ALLOCATOR_H_
#define CAPSTAN_TRAINER_MEMORY_TRACKING_ALLOCATOR_H_

#include <c10/core/Device.h>

#include <array>
#include <cstdint>

#include "plugins/sdk/memory.h"

namespace capstan {

// Bytes by MemoryCategory.
using MemoryByCategory = std::array<int64_t, kMemoryCategories>;

int64_t Total(const MemoryByCategory& bytes);

// What tensors hold in host memory, as they asked for it.
struct MemoryReport {
  MemoryByCategory live{};
  // At the moment when they held most, since the last ResetTrackedPeak.
  MemoryByCategory at_peak{};
};

// From now on tensors on the CPU take their memory from LibTorch's allocator,
// or from a cache of large blocks (block_cache.h), through one that counts, by
// CurrentMemoryCategory(); what lives already isn't counted. Once a process;
// later calls do nothing. No other thread may allocate tensors meanwhile.
void InstallTrackingAllocator();

// Exact, whatever threads do meanwhile; zeros before the installation.
MemoryReport TrackedMemory();

// The peak begins anew at what lives now.
void ResetTrackedPeak();

// The most that this process's tensors have held on a GPU, in bytes.
int64_t PeakGpuMemory(c10::Device gpu);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_TRACKING_ALLOCATOR_H_
