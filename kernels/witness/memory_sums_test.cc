// SPDX-License-Identifier: Apache-2.0
#include "kernels/witness/memory_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace capstan::kernels {
namespace {

std::vector<uint32_t> Words(int64_t count) {
  std::mt19937 random(1);
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) word = random();
  return words;
}

TEST(MemorySumsTest, EachFlipIsFoundAndMended) {
  std::mt19937 random(2);
  for (const int64_t count :
       {1, 15, 16, 17, 511, 512, 513, 16383, 16384, 16385, 40000}) {
    const std::vector<uint32_t> before = Words(count);
    std::vector<uint32_t> words = before;
    MemorySums sums;
    sums.Take(words.data(), 4 * count);
    EXPECT_TRUE(sums.Verify(words.data(), 4 * count).empty());
    for (int i = 0; i < 200; ++i) {
      const int64_t word = random() % count;
      words[word] ^= 1u << i % 32;
      const std::vector<ChangedWord> changes =
          sums.Verify(words.data(), 4 * count);
      ASSERT_EQ(changes.size(), 1);
      EXPECT_EQ(changes[0].word, word);
      EXPECT_TRUE(changes[0].mended);
      EXPECT_EQ(changes[0].was, before[word]);
      ASSERT_EQ(words, before) << count << " " << word;
    }
  }
}

TEST(MemorySumsTest, SeveralBitsOfAWordAreMended) {
  const std::vector<uint32_t> before = Words(5000);
  std::vector<uint32_t> words = before;
  MemorySums sums;
  sums.Take(words.data(), 20000);
  words[1234] ^= 0x80000401;
  words[77] ^= 0x1;  // in another lane
  EXPECT_EQ(sums.Verify(words.data(), 20000).size(), 2);
  EXPECT_EQ(words, before);
}

// Two words of a lane, and what any rotation leaves as it is.
TEST(MemorySumsTest, WhatCantBeLocatedIsToldAndLeftAlone) {
  const std::vector<uint32_t> before = Words(5000);
  for (const auto& flips :
       {std::vector<std::pair<int, uint32_t>>{{16, 0x10}, {32, 0x400}},
        std::vector<std::pair<int, uint32_t>>{{100, 0xffffffff}}}) {
    std::vector<uint32_t> words = before;
    MemorySums sums;
    sums.Take(words.data(), 20000);
    for (const auto& [word, bits] : flips) words[word] ^= bits;
    const std::vector<uint32_t> changed = words;
    const std::vector<ChangedWord> changes = sums.Verify(words.data(), 20000);
    ASSERT_EQ(changes.size(), 1);
    EXPECT_FALSE(changes[0].mended);
    EXPECT_EQ(words, changed);
  }
}

TEST(MemorySumsTest, ParityIsOfAllBytes) {
  std::vector<uint8_t> bytes(1027, 7);
  uint8_t before[64], after[64];
  ParityOfBytes(bytes.data(), 1027, before);
  for (const int at : {0, 63, 64, 1023, 1024, 1026}) {
    bytes[at] ^= 0x20;
    ParityOfBytes(bytes.data(), 1027, after);
    EXPECT_NE(memcmp(before, after, 64), 0) << at;
    bytes[at] ^= 0x20;
  }
}

}  // namespace
}  // namespace capstan::kernels
