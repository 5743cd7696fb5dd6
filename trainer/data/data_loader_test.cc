// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_loader.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace capstan {
namespace {

// A sample is its own index; reading `broken` is an error.
class Indices final : public DatasetReader {
 public:
  explicit Indices(int64_t size, int64_t broken = -1)
      : size_(size), broken_(broken) {}
  int64_t size() const override { return size_; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    at::Tensor ids =
        at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == broken_) {
        return absl::DataLossError("file.txt: sample 5 is broken");
      }
      ids.data_ptr<int64_t>()[i] = indices[i];
    }
    (*batch)["ids"] = ids;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }

 private:
  const int64_t size_;
  const int64_t broken_;
};

std::vector<int64_t> Take(DataLoader& loader, int batches) {
  std::vector<int64_t> all;
  for (int i = 0; i < batches; ++i) {
    const absl::StatusOr<Batch> batch = loader.Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    const at::Tensor& ids = batch->at("ids");
    all.insert(all.end(), ids.data_ptr<int64_t>(),
               ids.data_ptr<int64_t>() + ids.numel());
  }
  return all;
}

DataLoaderOptions Options(int64_t size, bool shuffle) {
  DataLoaderOptions options;
  options.order.size = size;
  options.order.shuffle = shuffle;
  options.order.seed = 7;
  options.shares = {2, 12, 3};
  return options;
}

// Micro-step a, rank r takes s + (a * world + r) * micro: what PyTorch's peer
// does, and what makes any world size see the same global batch.
TEST(DataLoaderTest, SequentialOrderOfRanksAndMicroSteps) {
  const Indices reader(100);
  DataLoaderOptions options = Options(100, false);
  options.rank = 1;
  auto loader = DataLoader::Create(options, reader);
  EXPECT_EQ(Take(*loader, 4),
            std::vector<int64_t>({2, 3, 8, 9, 14, 15, 20, 21}));
}

TEST(DataLoaderTest, RanksCoverEachEpochOnceWithoutOverlap) {
  for (bool shuffle : {false, true}) {
    const Indices reader(24);
    std::multiset<int64_t> seen;
    for (int rank = 0; rank < 3; ++rank) {
      DataLoaderOptions options = Options(24, shuffle);
      options.rank = rank;
      auto loader = DataLoader::Create(options, reader);
      for (int64_t id : Take(*loader, 4)) seen.insert(id);
    }
    ASSERT_EQ(seen.size(), 24);
    for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(seen.count(i), 1);
  }
}

TEST(DataLoaderTest, WorldSizeDoesNotChangeTheGlobalBatch) {
  const Indices reader(50);
  DataLoaderOptions one = Options(50, true);
  one.shares.ranks = 1;
  auto alone = DataLoader::Create(one, reader);
  const std::vector<int64_t> batch_of_one = Take(*alone, 6);
  std::multiset<int64_t> want(batch_of_one.begin(), batch_of_one.end());
  std::multiset<int64_t> got;
  for (int rank = 0; rank < 3; ++rank) {
    DataLoaderOptions options = Options(50, true);
    options.rank = rank;
    auto loader = DataLoader::Create(options, reader);
    for (int64_t id : Take(*loader, 2)) got.insert(id);
  }
  EXPECT_EQ(got, want);
}

TEST(DataLoaderTest, StartingLaterContinuesTheSequence) {
  const Indices reader(37);
  auto straight = DataLoader::Create(Options(37, true), reader);
  const std::vector<int64_t> all = Take(*straight, 8);
  DataLoaderOptions options = Options(37, true);
  options.start_position = 24;  // two steps later
  auto resumed = DataLoader::Create(options, reader);
  EXPECT_EQ(Take(*resumed, 4),
            std::vector<int64_t>(all.begin() + 8, all.end()));
}

// Positions identify a sample wherever it is trained on.
TEST(DataLoaderTest, PositionsComeWithTheSamples) {
  const Indices reader(10);
  DataLoaderOptions options = Options(10, true);
  options.rank = 2;
  options.start_position = 12;
  auto loader = DataLoader::Create(options, reader);
  SampleSequence sequence(options.order);
  for (const int64_t first : {16, 22, 28, 34}) {
    const absl::StatusOr<Batch> batch = loader->Next();
    ASSERT_TRUE(batch.ok());
    const at::Tensor& positions = batch->at("sample_position");
    ASSERT_EQ(positions.sizes(), at::IntArrayRef({2}));
    ASSERT_EQ(positions.scalar_type(), at::kLong);
    for (int64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(positions.const_data_ptr<int64_t>()[i], first + i);
      int64_t sample = 0;
      sequence.At(first + i, absl::MakeSpan(&sample, 1));
      EXPECT_EQ(batch->at("ids").const_data_ptr<int64_t>()[i], sample);
    }
  }
}

// They aren't read; the others keep their places, however the rows are divided.
TEST(DataLoaderTest, ForgottenSamplesAreLeftOut) {
  const Indices reader(100, /*broken=*/7);
  for (const int world : {1, 3}) {
    std::multiset<int64_t> seen;
    for (int rank = 0; rank < world; ++rank) {
      DataLoaderOptions options = Options(100, false);
      options.shares.ranks = world;
      options.rank = rank;
      options.forgotten = {2, 7, 8};
      auto loader = DataLoader::Create(options, reader);
      for (int i = 0; i < 6 / world; ++i) {
        const absl::StatusOr<Batch> batch = loader->Next();
        ASSERT_TRUE(batch.ok()) << batch.status();
        const at::Tensor& ids = batch->at("ids");
        ASSERT_TRUE(ids.equal(batch->at(kSamplePosition)));
        for (int64_t k = 0; k < ids.numel(); ++k) {
          seen.insert(ids.const_data_ptr<int64_t>()[k]);
        }
      }
    }
    EXPECT_EQ(seen, std::multiset<int64_t>({0, 1, 3, 4, 5, 6, 9, 10, 11}));
  }
}

TEST(RemoveForgottenTest, TheNextOneStandsInForAMicroBatchWithoutOthers) {
  const Indices reader(6);
  std::vector<int64_t> samples = {4, 5};
  std::vector<int64_t> positions = {10, 11};
  EXPECT_FALSE(RemoveForgotten({}, reader, &samples, &positions));
  EXPECT_FALSE(RemoveForgotten({3}, reader, &samples, &positions));
  EXPECT_EQ(samples, std::vector<int64_t>({4, 5}));
  // After the last comes the first.
  EXPECT_TRUE(RemoveForgotten({0, 4, 5}, reader, &samples, &positions));
  EXPECT_EQ(samples, std::vector<int64_t>({1}));
  EXPECT_EQ(positions, std::vector<int64_t>({10}));
}

TEST(DataLoaderTest, ReadersErrorComesInItsPlaceAndStays) {
  const Indices reader(100, /*broken=*/7);
  auto loader = DataLoader::Create(Options(100, false), reader);
  Take(*loader, 1);  // samples 0, 1; then 6, 7
  EXPECT_EQ(loader->Next().status().message(), "file.txt: sample 5 is broken");
  EXPECT_FALSE(loader->Next().ok());
}

// Each micro-batch of a step is somebody's, once, whatever the number of ranks.
TEST(BatchSharesTest, DivideAStep) {
  EXPECT_EQ((BatchShares{2, 24, 4}.FirstSample(1, 2)), 18);
  EXPECT_EQ((BatchShares{2, 24, 4, /*by_rank=*/true}.FirstSample(1, 2)), 10);
  for (const int ranks : {1, 2, 3, 5, 12, 16}) {
    const BatchShares shares = {2, 24, ranks};
    std::multiset<int64_t> firsts;
    int64_t idle = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int64_t i = 0; i < shares.micro_steps(); ++i) {
        const int64_t first = shares.FirstSample(rank, i);
        if (first >= 0) {
          firsts.insert(first);
          continue;
        }
        EXPECT_EQ(i + 1, shares.micro_steps());
        ++idle;
      }
    }
    EXPECT_EQ(idle, shares.idle_ranks());
    ASSERT_EQ(firsts.size(), 12);
    for (int64_t m = 0; m < 12; ++m) EXPECT_EQ(firsts.count(2 * m), 1);
  }
}

// 6 micro-batches for 4 ranks: ranks 2 and 3 have none in the last micro-step,
// and read the step's first sample, alone.
TEST(DataLoaderTest, AnIdleRankReadsTheStepsFirstSample) {
  const Indices reader(100);
  DataLoaderOptions options = Options(100, false);
  options.shares.ranks = 4;
  options.rank = 3;
  options.start_position = 36;
  auto loader = DataLoader::Create(options, reader);
  EXPECT_EQ(Take(*loader, 4), std::vector<int64_t>({42, 43, 36, 54, 55, 48}));
  options.forgotten = {36};
  loader = DataLoader::Create(options, reader);
  EXPECT_EQ(Take(*loader, 2), std::vector<int64_t>({42, 43, 37}));
}

}  // namespace
}  // namespace capstan
