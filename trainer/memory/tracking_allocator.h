// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_TRACKING_ALLOCATOR_H_
#define CAPSTAN_TRAINER_MEMORY_TRACKING_ALLOCATOR_H_

#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>

#include "plugins/sdk/memory.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// Caches large memory blocks from the kernel by size: steps request the same
// sizes again and again, and fresh pages must be cleared. A heap would keep
// them, too, but split them for other sizes until the process held far more
// than its tensors ever did.
//
// Blocks in use plus cached never exceed the maximum ever in use by more than
// Slack; the least recently used go back to the kernel first.
//
// Thread-safe.
class BlockCache {
 public:
  // Allowed excess over the maximum in use: a sixteenth of it, but at least
  // kLeastSlack (a small model's speed is worth more than its memory).
  static int64_t Slack(int64_t most_in_use);
  static constexpr int64_t kLeastSlack = int64_t{64} << 20;

  // At least `bytes` (> 0) bytes, page-aligned and uninitialized; null if the
  // kernel has none.
  void* Allocate(size_t bytes);
  // Takes a block from Allocate(bytes).
  void Free(void* block, size_t bytes);

  int64_t in_use() const;
  int64_t kept() const;

 private:
  struct Kept {
    void* block;
    int64_t bytes;
  };
  using Age = std::list<Kept>;  // oldest first

  void* Take(int64_t bytes);
  // Frees cached blocks until `more` bytes fit under the bound.
  void MakeRoom(int64_t more);
  // Frees cached blocks, oldest first, until at most `most` bytes are left.
  void GiveBack(int64_t most);

  mutable std::mutex mutex_;
  int64_t in_use_ = 0;
  int64_t most_in_use_ = 0;
  int64_t kept_ = 0;
  Age by_age_;
  std::multimap<int64_t, Age::iterator> by_size_;
};

// Bytes by MemoryCategory.
using MemoryByCategory = std::array<int64_t, kMemoryCategories>;

int64_t Total(const MemoryByCategory& bytes);

// Host memory held by tensors, as requested.
struct MemoryReport {
  MemoryByCategory live{};
  // At the peak since the last ResetTrackedPeak.
  MemoryByCategory at_peak{};
};

// From now on CPU tensors are allocated from LibTorch's allocator, or a
// BlockCache if large, and counted by CurrentMemoryCategory().
// Existing tensors aren't counted. Once per process; later calls do nothing. No
// other thread may allocate tensors during the call.
void InstallTrackingAllocator();

// Exact even under concurrent allocation; zeros before the installation.
MemoryReport TrackedMemory();

// Resets the peak to the current use.
void ResetTrackedPeak();

// This process's GPU memory. Waits for nothing.
GpuMemory ReadGpuMemory(c10::Device gpu);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_TRACKING_ALLOCATOR_H_
