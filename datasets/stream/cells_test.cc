// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/cells.h"

#include <gtest/gtest.h>

#include "datasets/stream/stream_testing.h"

namespace capstan::stream {
namespace {

// Cells of 1,000 tokens.
class CountedSource final : public CellSource {
 public:
  absl::StatusOr<CellTokens> Read(int64_t, int64_t) override {
    ++reads;
    CellTokens tokens;
    tokens.ids.assign(1000, 7);
    tokens.ends = {1000};
    return tokens;
  }
  std::vector<int64_t> Counts(int64_t, int64_t, int64_t count) const override {
    return std::vector<int64_t>(static_cast<size_t>(count), 1000);
  }
  int reads = 0;
};

int ReadsOfTenCellsTwice(int64_t most_bytes) {
  CountedSource source;
  Cells::Options options;
  options.most = 10;
  options.most_bytes = most_bytes;
  Cells cells(&source, options);
  for (int i = 0; i < 20; ++i) {
    Cells::Id id;
    id.cell = i % 10;
    EXPECT_TRUE(cells.Get(id).ok());
  }
  return source.reads;
}

TEST(CellsTest, MemoryIsBoundedByBytesToo) {
  EXPECT_EQ(ReadsOfTenCellsTwice(int64_t{1} << 30), 10);
  EXPECT_EQ(ReadsOfTenCellsTwice(20000), 20);
  EXPECT_EQ(ReadsOfTenCellsTwice(1), 20);  // one stays
}

TEST(CellStoreTest, WhatIsKeptIsCounted) {
  const std::string folder = NewFolder();
  WriteFile(folder + "/a.jsonl", JsonRow("abc"));
  WriteFile(folder + "/b.jsonl", JsonRow("abc"));
  const auto shards = ListShards(folder);
  ASSERT_TRUE(shards.ok()) << shards.status();
  const auto store = CellStore::Open(&*shards, "settings", 257, NewFolder());
  EXPECT_EQ(store->KeptBytes(), 0);
  CellTokens tokens;
  tokens.ids.assign(1000, 7);
  tokens.ends = {1000};
  ASSERT_TRUE(store->Write(0, 0, tokens, /*keep=*/false).ok());
  EXPECT_EQ(store->KeptBytes(), 0);
  ASSERT_TRUE(store->Write(1, 0, tokens, /*keep=*/true).ok());
  EXPECT_EQ(store->KeptBytes(), 2000 + 4);
}

}  // namespace
}  // namespace capstan::stream
