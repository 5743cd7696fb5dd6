// SPDX-License-Identifier: Apache-2.0
#include "strategies/diloco/parts.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan::diloco {
namespace {

std::vector<ParameterSpec> Specs() {
  std::vector<ParameterSpec> specs = {
      {"a", {10}}, {"frozen", {7}}, {"b", {3, 4}}};
  specs[1].trainable = false;
  return specs;
}

// The elements of parameters "0:3" that each part has, of these shards.
std::vector<std::set<std::string>> ElementsOf(
    const std::vector<OptimizerShard>& shards, int parts, int64_t most) {
  std::vector<std::set<std::string>> elements;
  for (const auto& slices : CutParts(Specs(), shards, parts, most)) {
    elements.emplace_back();
    for (const OwnedSlice& slice : slices) {
      EXPECT_LE(slice.end - slice.begin, most);
      for (const ParameterRange& r : shards[slice.shard].ranges) {
        for (int64_t i = 0; i < r.length; ++i) {
          if (r.offset + i < slice.begin || r.offset + i >= slice.end) continue;
          const bool added =
              elements.back()
                  .insert(absl::StrCat(r.parameter, ":", r.begin + i))
                  .second;
          EXPECT_TRUE(added) << r.parameter << ":" << r.begin + i;
        }
      }
    }
  }
  return elements;
}

OptimizerShard Shard(std::vector<ParameterRange> ranges) {
  OptimizerShard shard;
  shard.ranges = std::move(ranges);
  return shard;
}

// 22 elements: of one rank's whole replica, backward, with padding, and of the
// two shards of the ranks of a site.
TEST(PartsTest, HaveTheSameElementsInEachLayout) {
  const std::vector<OptimizerShard> whole = {
      Shard({{2, 0, 12, 0}, {0, 0, 10, 32}})};
  const std::vector<OptimizerShard> first = {Shard({{0, 0, 5, 0}}),
                                             Shard({{2, 0, 6, 0}})};
  const std::vector<OptimizerShard> second = {Shard({{0, 5, 5, 0}}),
                                              Shard({{2, 6, 6, 0}})};
  for (const int64_t most : {100, 3}) {
    for (const int parts : {1, 2, 3, 5}) {
      const auto all = ElementsOf(whole, parts, most);
      auto site = ElementsOf(first, parts, most);
      const auto other = ElementsOf(second, parts, most);
      size_t count = 0;
      for (int p = 0; p < parts; ++p) {
        site[p].insert(other[p].begin(), other[p].end());
        EXPECT_EQ(all[p], site[p]) << p << " of " << parts;
        EXPECT_NEAR(all[p].size(), 22.0 / parts, 1.0);
        count += all[p].size();
      }
      EXPECT_EQ(count, 22);
    }
  }
}

// Padding doesn't cut a part.
TEST(PartsTest, NeighboursAreOneSlice) {
  const auto cut = CutParts(Specs(), {Shard({{2, 0, 12, 0}, {0, 0, 10, 32}})},
                            /*parts=*/1, /*most=*/1000);
  ASSERT_EQ(cut[0].size(), 1);
  EXPECT_EQ(cut[0][0].begin, 0);
  EXPECT_EQ(cut[0][0].end, 42);
}

TEST(RoundsTest, EachPartHasItsSteps) {
  const Rounds rounds = {/*local_steps=*/10, /*parts=*/4, /*overlap=*/3};
  std::map<int, std::vector<int64_t>> begins;
  for (int64_t step = -5; step <= 20; ++step) {
    int under_way = 0;
    for (int part = 0; part < 4; ++part) {
      if (rounds.Begins(part, step)) begins[part].push_back(step);
      EXPECT_EQ(rounds.Ends(part, step), rounds.Begins(part, step - 3));
      under_way += rounds.UnderWay(part, step) ? 1 : 0;
    }
    EXPECT_LE(under_way, rounds.most_under_way()) << step;
  }
  EXPECT_EQ(begins[0], (std::vector<int64_t>{2, 12}));
  EXPECT_EQ(begins[1], (std::vector<int64_t>{5, 15}));
  EXPECT_EQ(begins[2], (std::vector<int64_t>{7, 17}));
  EXPECT_EQ(begins[3], (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(rounds.most_under_way(), 2);
  EXPECT_TRUE(rounds.UnderWay(0, 4));
  EXPECT_FALSE(rounds.UnderWay(0, 5));
  const Rounds blocking = {10, 1, 0};
  EXPECT_TRUE(blocking.Begins(0, 10) && blocking.Ends(0, 10));
  EXPECT_FALSE(blocking.UnderWay(0, 10));
  EXPECT_EQ(blocking.most_under_way(), 0);
}

}  // namespace
}  // namespace capstan::diloco
