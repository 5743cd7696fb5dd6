// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "trainer/memory/tracking_allocator.h"

namespace capstan {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST(BlockCacheTest, GivesTheSameBlockForTheSameSize) {
  BlockCache cache;
  void* const other = cache.Allocate(8 * kMiB);
  void* const block = cache.Allocate(kMiB + 5);
  std::memset(block, 1, kMiB + 5);
  cache.Free(block, kMiB + 5);
  cache.Free(other, 8 * kMiB);
  // The same pages.
  EXPECT_EQ(cache.Allocate(kMiB + 4096), block);
  EXPECT_EQ(cache.in_use(), kMiB + 4096);
  EXPECT_EQ(cache.kept(), 8 * kMiB);
  cache.Free(block, kMiB + 4096);
  EXPECT_EQ(cache.in_use(), 0);
}

TEST(BlockCacheTest, HoldsLittleMoreThanWasEverInUse) {
  BlockCache cache;
  int64_t most = 0;
  // Of each size, several at once; none fits another.
  for (size_t size = 1; size <= 60; ++size) {
    std::vector<void*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(cache.Allocate(size * kMiB));
    most = std::max(most, cache.in_use());
    EXPECT_LE(cache.in_use() + cache.kept(), most + BlockCache::Slack(most));
    for (void* block : blocks) cache.Free(block, size * kMiB);
    EXPECT_LE(cache.in_use() + cache.kept(), most + BlockCache::Slack(most));
  }
  // The least recently used went: the last sizes are still cached.
  EXPECT_GE(cache.kept(), 3 * 60 * kMiB);
  EXPECT_LT(cache.kept(), 3 * (58 + 59 + 60) * kMiB);
}

TEST(BlockCacheTest, SaysWhenTheKernelHasNone) {
  BlockCache cache;
  EXPECT_EQ(cache.Allocate(size_t{1} << 60), nullptr);
  EXPECT_EQ(cache.in_use(), 0);
}

}  // namespace
}  // namespace capstan
