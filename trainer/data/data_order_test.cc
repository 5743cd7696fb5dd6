// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "base/random.h"
#include "trainer/data/data_loader.h"

namespace capstan {
namespace {

DataOrder Plain(int64_t size, bool shuffle, uint64_t seed) {
  DataOrder order;
  order.size = size;
  order.shuffle = shuffle;
  order.seed = seed;
  return order;
}

// Samples of lengths 1 to 100, one of them longer than all.
class Lengths final : public DatasetReader {
 public:
  Lengths(int64_t size, bool shuffle) : size_(size), shuffle_(shuffle) {}
  int64_t size() const override { return size_; }
  bool shuffle() const override { return shuffle_; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  int64_t sample_length(int64_t index) const override {
    if (index == size_ / 3) return 1000;
    return 1 + static_cast<int64_t>(
                   RandomBelow(RandomKey(5, "length"), index, 100));
  }

 private:
  const int64_t size_;
  const bool shuffle_;
};

std::vector<int64_t> Take(const DataOrder& order, int64_t begin,
                          int64_t count) {
  std::vector<int64_t> samples(count);
  SampleSequence(order).At(begin, absl::MakeSpan(samples));
  return samples;
}

TEST(DataOrderTest, EpochsDifferAndEachCoversAll) {
  SampleSequence order(Plain(1000, true, 3));
  // Also across the border in one call.
  std::vector<int64_t> samples(2000);
  order.At(0, absl::MakeSpan(samples).first(700));
  order.At(700, absl::MakeSpan(samples).subspan(700));
  const auto half = samples.begin() + 1000;
  EXPECT_EQ(std::set<int64_t>(samples.begin(), half).size(), 1000);
  EXPECT_EQ(std::set<int64_t>(half, samples.end()).size(), 1000);
  int same = 0;
  for (int64_t i = 0; i < 1000; ++i) same += samples[i] == samples[1000 + i];
  EXPECT_LT(same, 20);
}

TEST(DataOrderTest, EachEpochOfAReaderThatDrawsHasSamplesOfItsOwn) {
  for (bool shuffle : {false, true}) {
    DataOrder order = Plain(100, shuffle, 3);
    const std::vector<int64_t> once = Take(order, 0, 300);
    order.anew = true;
    std::vector<int64_t> anew = Take(order, 0, 300);
    for (int64_t i = 0; i < 300; ++i) {
      EXPECT_EQ(anew[i], once[i] + i / 100 * 100);
    }
    // From anywhere, as after a restart.
    EXPECT_EQ(Take(order, 150, 100),
              std::vector<int64_t>(anew.begin() + 150, anew.begin() + 250));
  }
}

TEST(DataOrderTest, SequenceGoesOnAcrossSeveralEpochs) {
  EXPECT_EQ(Take(Plain(3, false, 0), 2, 8),
            std::vector<int64_t>({2, 0, 1, 2, 0, 1, 2, 0}));
}

TEST(GroupByLengthTest, EachEpochHasAllSamplesInAnotherOrder) {
  const Lengths data(5000, true);
  const DataOrder order = OrderOf(data, 1, true, 16);
  EXPECT_EQ(order.group, 50 * 16);
  const std::vector<int64_t> first = Take(order, 0, 5000);
  const std::vector<int64_t> second = Take(order, 5000, 5000);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 5000);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 5000);
  EXPECT_NE(first, second);
  // The longest is the first of all.
  EXPECT_EQ(first[0], 5000 / 3);
  EXPECT_EQ(second[0], 5000 / 3);
}

TEST(GroupByLengthTest, LongestFirstInEachGroupAndLittlePadding) {
  const Lengths data(5000, true);
  const auto padded = [&](bool group) {
    const std::vector<int64_t> samples =
        Take(OrderOf(data, 1, group, 16), 0, 5000);
    int64_t tokens = 0;
    for (size_t i = 16; i + 16 <= samples.size(); i += 16) {
      int64_t most = 0;
      for (size_t k = i; k < i + 16; ++k) {
        most = std::max(most, data.sample_length(samples[k]));
      }
      tokens += 16 * most;
    }
    return tokens;
  };
  EXPECT_LT(padded(true), 0.6 * static_cast<double>(padded(false)));
  const std::vector<int64_t> samples =
      Take(OrderOf(data, 1, true, 16), 0, 5000);
  for (size_t i = 1; i < samples.size(); ++i) {
    if (i % 800 == 0) continue;
    ASSERT_GE(data.sample_length(samples[i - 1]),
              data.sample_length(samples[i]))
        << i;
  }
}

TEST(GroupByLengthTest, AGroupHasTheSamplesThatItHasUnsorted) {
  const Lengths data(5000, true);
  std::vector<int64_t> sorted = Take(OrderOf(data, 1, true, 16), 800, 800);
  std::vector<int64_t> plain = Take(OrderOf(data, 1, false, 16), 800, 800);
  std::sort(sorted.begin(), sorted.end());
  std::sort(plain.begin(), plain.end());
  std::vector<int64_t> both;
  std::set_intersection(sorted.begin(), sorted.end(), plain.begin(),
                        plain.end(), std::back_inserter(both));
  // But for the longest, which may have changed places.
  EXPECT_GE(both.size(), 799);
}

// A pure function of the position: read in any pieces, from anywhere.
TEST(GroupByLengthTest, AnyPieceIsTheSame) {
  const Lengths data(1003, true);
  const DataOrder order = OrderOf(data, 9, true, 8);
  const std::vector<int64_t> all = Take(order, 0, 3000);
  for (const int64_t begin : {0, 7, 399, 1002, 1003, 2005}) {
    for (const int64_t count : {1, 13, 500}) {
      const std::vector<int64_t> piece = Take(order, begin, count);
      EXPECT_TRUE(std::equal(piece.begin(), piece.end(), all.begin() + begin))
          << begin;
    }
  }
}

TEST(GroupByLengthTest, SmallAndUnshuffledDataToo) {
  const Lengths data(10, false);
  const DataOrder order = OrderOf(data, 1, true, 16);
  EXPECT_EQ(order.group, 16);
  std::vector<int64_t> samples = Take(order, 0, 10);
  EXPECT_EQ(samples[0], 3);
  std::sort(samples.begin(), samples.end());
  std::vector<int64_t> want(10);
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(samples, want);
}

// Steps of 6 rows, of which 3 are one sample, and two steps have the same.
TEST(RolloutsTest, ASampleIsSeveralRowsOfSeveralSteps) {
  const Lengths data(1000, true);
  const DataOrder plain = OrderOf(data, 9, false, 6);
  const DataOrder order = OrderOf(data, 9, false, 6, {3, 2});
  const std::vector<int64_t> samples = Take(plain, 0, 700);
  const std::vector<int64_t> rows = Take(order, 0, 600);
  for (int64_t p = 0; p < 600; ++p) {
    EXPECT_EQ(rows[p], samples[p / 12 * 2 + p % 6 / 3]) << p;
  }
  // From anywhere, and into the second epoch.
  for (const int64_t begin : {1, 5, 11, 12, 599}) {
    const std::vector<int64_t> piece = Take(order, begin, 1);
    EXPECT_EQ(piece[0], rows[begin]) << begin;
  }
  EXPECT_EQ(Take(order, 6000, 1)[0], Take(plain, 1000, 1)[0]);
}

}  // namespace
}  // namespace capstan
