// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/texts_of_ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using Texts = std::vector<std::string>;

// Counts the bytes that are read.
class CountingStore : public c10d::HashStore {
 public:
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override {
    auto values = HashStore::multiGet(keys);
    for (const auto& value : values) bytes += value.size();
    return values;
  }
  std::vector<uint8_t> get(const std::string& key) override {
    auto value = HashStore::get(key);
    bytes += value.size();
    return value;
  }
  std::atomic<size_t> bytes{0};
};

size_t BytesRead(const Texts& texts) {
  const int size = static_cast<int>(texts.size());
  CountingStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_EQ(TextsOfRanks(store, "key", rank, size, texts[rank]), texts);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return store.bytes;
}

TEST(TextsOfRanksTest, EachGetsAll) {
  BytesRead({"alone"});
  BytesRead({"", "a", "a", "", "two\nlines 3 4\n", "b"});
}

TEST(TextsOfRanksTest, EqualTextsAreSentOnce) {
  const std::string text(100, 'x');
  // Rank 0 reads each rank's, and each a list of one.
  EXPECT_LT(BytesRead(Texts(64, text)), 64 * (101 + 110));
}

// Ranks that are dealt round.
TEST(TextsOfRanksTest, EqualTextsNeedNotBeNeighbours) {
  Texts texts;
  for (int rank = 0; rank < 64; ++rank) {
    texts.emplace_back(100, static_cast<char>('a' + rank % 4));
  }
  EXPECT_LT(BytesRead(texts), 64 * (101 + 4 * 110 + 64 * 4));
}

TEST(TextsOfRanksTest, DamagedListsAreErrors) {
  const std::string good = JoinTexts({"a", "a", "bc"});
  EXPECT_EQ(*SplitTexts(good, 3), (Texts{"a", "a", "bc"}));
  EXPECT_FALSE(SplitTexts(good, 2).ok());
  EXPECT_FALSE(SplitTexts(good, 4).ok());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(SplitTexts(good.substr(0, length), 3).ok()) << length;
  }
  for (const char* bad : {"x\n", "1\n", "1 2\na", "1 1\na1 1\n", "1 1\na-1 0\n",
                          "1 1\na2 0\n", "1 1\na1\n", "1 1\na1 0"}) {
    EXPECT_FALSE(SplitTexts(bad, 1).ok()) << bad;
  }
}

}  // namespace
}  // namespace capstan
