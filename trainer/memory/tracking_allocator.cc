// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/tracking_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>

namespace capstan {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;

int64_t Rounded(size_t bytes) {
  return (static_cast<int64_t>(bytes) + kPage - 1) / kPage * kPage;
}

// Null if the kernel has no memory.
void* Map(int64_t bytes) {
  void* const block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : block;
}

// Precedes the data; a multiple of LibTorch's alignment (64 bytes), so that the
// data stays aligned.
struct alignas(64) Header {
  uint64_t magic;
  int64_t bytes;
  MemoryCategory category;
};
static_assert(sizeof(Header) == 64);

// Minimum size for the block cache.
constexpr int64_t kLargeBlock = 256 << 10;

BlockCache& large_blocks() {
  static BlockCache* const cache = new BlockCache;  // outlives every tensor
  return *cache;
}

void* Acquire(size_t bytes) {
  if (static_cast<int64_t>(bytes) < kLargeBlock) return c10::alloc_cpu(bytes);
  void* const block = large_blocks().Allocate(bytes);
  // LibTorch's wording, for those who search for it.
  TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr,
                   "DefaultCPUAllocator: can't allocate memory: you tried to "
                   "allocate ",
                   bytes, " bytes.");
  return block;
}

void Release(void* block, size_t bytes) {
  if (static_cast<int64_t>(bytes) < kLargeBlock) return c10::free_cpu(block);
  large_blocks().Free(block, bytes);
}

// LibTorch may raw_deallocate memory of an earlier allocator through this one:
// such memory has no header.
constexpr uint64_t kMagic = 0x79726f6d656d7063;

// A single lock: uncontended it costs less than the malloc it guards, and it
// makes the peak exact.
struct Counters {
  std::mutex mutex;
  MemoryReport report;
  int64_t live = 0;
  int64_t peak = 0;
};

Counters& counters() {
  static Counters* const counters = new Counters;  // outlives every tensor
  return *counters;
}

void Count(MemoryCategory category, int64_t bytes) {
  Counters& all = counters();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.report.live[static_cast<int>(category)] += bytes;
  all.live += bytes;
  if (all.live > all.peak) {
    all.peak = all.live;
    all.report.at_peak = all.report.live;
  }
}

// Reads before the start of memory that isn't ours.
__attribute__((no_sanitize("address"))) bool IsOurs(const Header* header) {
  return header->magic == kMagic;
}

void Free(void* data) {
  if (data == nullptr) return;
  Header* const header = static_cast<Header*>(data) - 1;
  if (!IsOurs(header)) return c10::free_cpu(data);
  header->magic = 0;
  Count(header->category, -header->bytes);
  Release(header, sizeof(Header) + header->bytes);
}

class TrackingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      auto* const header =
          static_cast<Header*>(Acquire(sizeof(Header) + bytes));
      *header = {kMagic, static_cast<int64_t>(bytes), CurrentMemoryCategory()};
      Count(header->category, header->bytes);
      data = header + 1;
    }
    return {data, data, &Free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

int64_t BlockCache::Slack(int64_t most_in_use) {
  return std::max(kLeastSlack, most_in_use / 16);
}

void* BlockCache::Take(int64_t bytes) {
  // The most recent of its size, most likely still in the CPU cache.
  const auto range = by_size_.equal_range(bytes);
  if (range.first == range.second) return nullptr;
  const auto found = std::prev(range.second);
  void* const block = found->second->block;
  by_age_.erase(found->second);
  by_size_.erase(found);
  kept_ -= bytes;
  return block;
}

void BlockCache::MakeRoom(int64_t more) {
  const int64_t most = std::max(most_in_use_, in_use_ + more);
  GiveBack(most + Slack(most) - in_use_ - more);
}

void BlockCache::GiveBack(int64_t most) {
  while (kept_ > 0 && kept_ > most) {
    const Age::iterator oldest = by_age_.begin();
    const auto range = by_size_.equal_range(oldest->bytes);
    for (auto it = range.first; it != range.second; ++it) {
      if (it->second != oldest) continue;
      by_size_.erase(it);
      break;
    }
    munmap(oldest->block, oldest->bytes);
    kept_ -= oldest->bytes;
    by_age_.erase(oldest);
  }
}

void* BlockCache::Allocate(size_t bytes) {
  const int64_t rounded = Rounded(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  void* block = Take(rounded);
  if (block == nullptr) {
    MakeRoom(rounded);
    block = Map(rounded);
    if (block == nullptr) {
      // Cached blocks may be what the kernel lacks.
      GiveBack(0);
      block = Map(rounded);
    }
    if (block == nullptr) return nullptr;
    // Fewer page faults and TLB misses.
    if (rounded >= 2 * kHugePage) madvise(block, rounded, MADV_HUGEPAGE);
  }
  in_use_ += rounded;
  most_in_use_ = std::max(most_in_use_, in_use_);
  return block;
}

void BlockCache::Free(void* block, size_t bytes) {
  const int64_t rounded = Rounded(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  in_use_ -= rounded;
  by_age_.push_back({block, rounded});
  by_size_.emplace(rounded, std::prev(by_age_.end()));
  kept_ += rounded;
  MakeRoom(0);
}

int64_t BlockCache::in_use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}

int64_t BlockCache::kept() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_;
}

int64_t Total(const MemoryByCategory& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

void InstallTrackingAllocator() {
  static TrackingAllocator* const allocator = [] {
    auto* made = new TrackingAllocator;  // outlives every tensor
    c10::SetCPUAllocator(made, /*priority=*/1);
    return made;
  }();
  (void)allocator;
}

MemoryReport TrackedMemory() {
  Counters& all = counters();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.report;
}

void ResetTrackedPeak() {
  Counters& all = counters();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.peak = all.live;
  all.report.at_peak = all.report.live;
}

GpuMemory ReadGpuMemory(c10::Device gpu) {
  // From c10, so that the core doesn't need CUDA's libraries.
  const c10::CachingDeviceAllocator::DeviceStats stats =
      c10::getDeviceAllocator(gpu.type())->getDeviceStats(gpu.index());
  constexpr auto kAll =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  GpuMemory memory;
  memory.allocated = stats.allocated_bytes[kAll].current;
  memory.reserved = stats.reserved_bytes[kAll].current;
  memory.peak_allocated = stats.allocated_bytes[kAll].peak;
  memory.peak_reserved = stats.reserved_bytes[kAll].peak;
  return memory;
}

}  // namespace capstan
