// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "plugins/sdk/memory.h"
#include "trainer/memory/tracking_allocator.h"

namespace capstan {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPage = 4096;

TEST(ZeroFillTest, NothingMayBeNowhere) { ZeroFill(nullptr, 0); }

TEST(ZeroFillTest, ZeroesExactlyItsRange) {
  constexpr size_t kTotal = 12 * kMiB;
  BlockCache cache;
  char* const block = static_cast<char*>(cache.Allocate(kTotal));
  const auto is = [](char value) {
    return [value](char c) { return c == value; };
  };
  for (const size_t begin : {size_t{0}, size_t{64}, 3 * kMiB + 5}) {
    for (const size_t bytes :
         {size_t{0}, size_t{1}, kMiB, 4 * kMiB, 4 * kMiB + 1, 8 * kMiB + 77}) {
      std::memset(block, 7, kTotal);
      ZeroFill(block + begin, bytes);
      char* const at = block + begin;
      EXPECT_TRUE(std::all_of(block, at, is(7))) << begin << " " << bytes;
      EXPECT_TRUE(std::all_of(at, at + bytes, is(0))) << begin << " " << bytes;
      EXPECT_TRUE(std::all_of(at + bytes, block + kTotal, is(7)))
          << begin << " " << bytes;
    }
  }
  cache.Free(block, kTotal);
}

TEST(ZeroFillTest, TakesNoPagesOfAFreshBlock) {
  constexpr size_t kTotal = 64 * kMiB;
  BlockCache cache;
  char* const block = static_cast<char*>(cache.Allocate(kTotal));
  ZeroFill(block + 64, kTotal - 64);
  std::vector<unsigned char> there(kTotal / kPage);
  ASSERT_EQ(mincore(block, kTotal, there.data()), 0);
  const auto pages = std::count_if(there.begin(), there.end(),
                                   [](unsigned char page) { return page & 1; });
  EXPECT_LE(pages * kPage, 4 * kMiB);
  EXPECT_EQ(block[kTotal / 2], 0);
  cache.Free(block, kTotal);
}

}  // namespace
}  // namespace capstan
