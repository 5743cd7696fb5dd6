// SPDX-License-Identifier: Apache-2.0
#include "base/heap.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstddef>
#include <cstdlib>

namespace capstan {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// What the heap has, and what large blocks have on their own.
struct Taken {
  size_t heap = mallinfo2().arena;
  size_t mapped = mallinfo2().hblkhd;
};

// A process begins with the one and, if it trains, goes on with the other.
TEST(HeapTest, GivesLargeBlocksBackUntilItKeepsThem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has its own malloc";
#endif
  BackHeapWithHugePages(8 * kMiB);
  const Taken begin;
  EXPECT_GE(begin.heap, 8 * kMiB);
  // Volatile, or the compiler would leave both calls out.
  void* volatile block = std::malloc(100 * kMiB);
  const Taken with_mapped;
  EXPECT_GE(with_mapped.mapped, begin.mapped + 100 * kMiB);
  std::free(block);
  EXPECT_EQ(Taken().mapped, begin.mapped);

  KeepFreedMemory();
  block = std::malloc(100 * kMiB);
  const Taken with_kept;
  EXPECT_EQ(with_kept.mapped, begin.mapped);
  EXPECT_GE(with_kept.heap, begin.heap + 50 * kMiB);
  std::free(block);
  EXPECT_EQ(Taken().heap, with_kept.heap);
}

}  // namespace
}  // namespace capstan
