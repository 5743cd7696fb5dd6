// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/block_cache.h"

#include <sys/mman.h>

#include <algorithm>

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

}  // namespace capstan
