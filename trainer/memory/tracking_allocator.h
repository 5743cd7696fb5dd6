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

// Host memory held by tensors, as requested.
struct MemoryReport {
  MemoryByCategory live{};
  // At the peak since the last ResetTrackedPeak.
  MemoryByCategory at_peak{};
};

// From now on CPU tensors are allocated from LibTorch's allocator, or a cache
// of large blocks (block_cache.h), and counted by CurrentMemoryCategory().
// Existing tensors aren't counted. Once per process; later calls do nothing. No
// other thread may allocate tensors during the call.
void InstallTrackingAllocator();

// Exact even under concurrent allocation; zeros before the installation.
MemoryReport TrackedMemory();

// Resets the peak to the current use.
void ResetTrackedPeak();

// Peak GPU memory of this process's tensors, in bytes.
int64_t PeakGpuMemory(c10::Device gpu);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_TRACKING_ALLOCATOR_H_
