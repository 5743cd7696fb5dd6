// SPDX-License-Identifier: Apache-2.0
//
// How rows become samples: packing and mixtures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "datasets/chat/sample_table.h"

namespace capstan::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PackingTest, EachGoesWhereItLeavesTheLeastRoom) {
  // By length: 8 | 6 | 4 to the 6 | 3 | 2 to the 8 | 1 to the 3.
  const Packs packs = PackBestFit({3, 6, 1, 8, 2, 4}, 10);
  EXPECT_THAT(packs.begins, ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(packs.items, ElementsAre(0, 2, 1, 5, 3, 4));
}

TEST(PackingTest, PacksHoldEachItemOnceAndNeverTooMuch) {
  for (uint32_t capacity : {1u, 2u, 17u, 1024u}) {
    std::vector<uint32_t> lengths;
    for (uint64_t i = 0; i < 3000; ++i) {
      lengths.push_back(1 + RandomBelow(capacity, i, capacity));
    }
    const Packs packs = PackBestFit(lengths, capacity);
    std::vector<uint32_t> sorted = packs.items;
    std::sort(sorted.begin(), sorted.end());
    std::vector<uint32_t> all(lengths.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all);
    EXPECT_EQ(packs.begins.back(), lengths.size());
    uint64_t total = 0;
    for (size_t p = 0; p + 1 < packs.begins.size(); ++p) {
      uint64_t sum = 0;
      for (uint64_t i = packs.begins[p]; i < packs.begins[p + 1]; ++i) {
        sum += lengths[packs.items[i]];
        EXPECT_TRUE(i == packs.begins[p] ||
                    packs.items[i - 1] < packs.items[i]);
      }
      EXPECT_LE(sum, capacity);
      EXPECT_GT(sum, 0);
      total += sum;
    }
    // Johnson's bound: 11/9 of the optimum, plus one.
    const double least = static_cast<double>(total) / capacity;
    EXPECT_LE(packs.begins.size() - 1, 11.0 / 9.0 * (least + 1) + 1)
        << capacity;
  }
  EXPECT_THAT(PackBestFit({}, 8).begins, ElementsAre(0));
}

TEST(MixtureTest, WithoutWeightsOneSourceComesAfterTheOther) {
  const auto mixture = Mixture::Create({3, 0, 2}, {}, 1);
  ASSERT_TRUE(mixture.ok());
  ASSERT_EQ(mixture->size(), 5);
  std::vector<std::pair<size_t, int64_t>> seen;
  for (int64_t i = 0; i < 5; ++i) {
    seen.emplace_back(mixture->At(i).source, mixture->At(i).sample);
  }
  EXPECT_EQ(seen, (std::vector<std::pair<size_t, int64_t>>{
                      {0, 0}, {0, 1}, {0, 2}, {2, 0}, {2, 1}}));
}

TEST(MixtureTest, WeightsAreSharesAndNoSampleIsLeftOut) {
  const auto mixture = Mixture::Create({100, 30}, {1, 3}, 7);
  ASSERT_TRUE(mixture.ok());
  // The first source needs 400 samples to be seen whole: 100 and 300.
  ASSERT_EQ(mixture->size(), 400);
  std::map<std::pair<size_t, int64_t>, int> times;
  int early = 0;
  for (int64_t i = 0; i < mixture->size(); ++i) {
    const Mixture::Draw draw = mixture->At(i);
    ++times[{draw.source, draw.sample}];
    if (i < 40 && draw.source == 0) ++early;
  }
  EXPECT_EQ(times.size(), 130);
  for (const auto& [draw, count] : times) {
    EXPECT_EQ(count, draw.first == 0 ? 1 : 10);
  }
  EXPECT_GT(early, 0);  // mixed from the start
  EXPECT_LT(early, 30);
}

TEST(MixtureTest, TheSeedAloneDecides) {
  const auto draws = [](uint64_t seed) {
    const auto mixture = Mixture::Create({10, 10}, {1, 1.5}, seed);
    std::vector<std::pair<size_t, int64_t>> out;
    for (int64_t i = 0; i < mixture->size(); ++i) {
      out.emplace_back(mixture->At(i).source, mixture->At(i).sample);
    }
    return out;
  };
  EXPECT_EQ(draws(1), draws(1));
  EXPECT_NE(draws(1), draws(2));
  EXPECT_FALSE(Mixture::Create({1000000000, 1}, {1e-9, 1e8}, 1).ok());
}

TEST(HeldOutTest, AreTheLowestHashesAndEqualRowsStayTogether) {
  EXPECT_EQ(*HeldOutBelow({5, 1, 9, 3, 7}, 0.4), 3);
  EXPECT_EQ(*HeldOutBelow({5, 1, 9, 3, 7}, 0.01), 1);
  EXPECT_EQ(*HeldOutBelow({1, 1, 1, 3, 7}, 0.2), 1);
  EXPECT_THAT(std::string(HeldOutBelow({4, 4, 4}, 0.3).status().message()),
              HasSubstr("nothing to train on"));
  EXPECT_FALSE(HeldOutBelow({4, 5}, 0.99).ok());
}

}  // namespace
}  // namespace capstan::chat
