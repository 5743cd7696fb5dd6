// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/forgiving_reader.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/data/data_loader.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Sample i is the number i; those in `bad` can't be read, by a status or, if
// odd, an exception. One is out of memory.
class Data final : public DatasetReader {
 public:
  explicit Data(std::set<int64_t> bad, int64_t size = 10, int64_t full = -1)
      : bad_(std::move(bad)), size_(size), full_(full) {}
  int64_t size() const override { return size_; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    at::Tensor out =
        at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
    (*batch)["half"] = out;  // what an error leaves behind
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == full_) throw std::bad_alloc();
      if (bad_.count(indices[i]) > 0) {
        const std::string words = absl::StrCat("row ", indices[i], " is torn");
        if (indices[i] % 2 == 1) throw std::runtime_error(words);
        return absl::DataLossError(words);
      }
      out.mutable_data_ptr<int64_t>()[i] = indices[i];
    }
    *batch = {{"number", out}};
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }

 private:
  const std::set<int64_t> bad_;
  const int64_t size_;
  const int64_t full_;
};

std::vector<int64_t> Numbers(const Batch& batch) {
  EXPECT_EQ(batch.count("half"), 0);
  const at::Tensor& number = batch.at("number");
  const int64_t* const data = number.const_data_ptr<int64_t>();
  return {data, data + number.numel()};
}

std::vector<int64_t> ReadAll(const DatasetReader& reader,
                             const std::vector<int64_t>& samples) {
  Batch batch;
  const absl::Status status = reader.Read(samples, &batch);
  EXPECT_TRUE(status.ok()) << status;
  return status.ok() ? Numbers(batch) : std::vector<int64_t>();
}

std::vector<int64_t> SamplesOf(const std::vector<BadSample>& bad) {
  std::vector<int64_t> samples;
  for (const BadSample& one : bad) samples.push_back(one.sample);
  return samples;
}

TEST(ForgivingReaderTest, GivesTheNextThatCanBeRead) {
  const Data data({2, 3, 9});
  const ForgivingReader reader(&data, 3);
  EXPECT_THAT(ReadAll(reader, {0, 1}), ElementsAre(0, 1));
  EXPECT_TRUE(reader.All().empty());
  EXPECT_THAT(ReadAll(reader, {1, 2, 9}), ElementsAre(1, 4, 0));
  // Known by now.
  EXPECT_THAT(ReadAll(reader, {3, 3, 9}), ElementsAre(4, 4, 0));
  EXPECT_THAT(SamplesOf(reader.All()), ElementsAre(2, 3, 9));
  EXPECT_EQ(reader.All()[0].why, "row 2 is torn");
  EXPECT_EQ(reader.All()[1].why, "row 3 is torn");
}

TEST(ForgivingReaderTest, SaysWhatWasPassedOverForABatch) {
  const Data data({2, 3, 7});
  const ForgivingReader reader(&data, 3);
  ReadAll(reader, {2, 5, 7});
  EXPECT_THAT(SamplesOf(reader.BadAmong({0, 2, 2})), ElementsAre(2, 3));
  EXPECT_THAT(SamplesOf(reader.BadAmong({3, 7})), ElementsAre(3, 7));
  EXPECT_TRUE(reader.BadAmong({4, 5}).empty());
}

TEST(ForgivingReaderTest, OneTooMany) {
  const Data data({2, 3, 7});
  const ForgivingReader reader(&data, 2);
  EXPECT_THAT(ReadAll(reader, {2}), ElementsAre(4));
  Batch batch;
  const absl::Status status = reader.Read({7}, &batch);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("sample 7"), HasSubstr("row 7 is torn"),
                    HasSubstr("train.skip_bad_samples is 2")));
}

TEST(ForgivingReaderTest, NothingCanBeRead) {
  const Data data({0, 1, 2}, /*size=*/3);
  const ForgivingReader reader(&data, 100);
  Batch batch;
  EXPECT_TRUE(absl::IsDataLoss(reader.Read({1}, &batch)));
  EXPECT_FALSE(reader.Read({1}, &batch).ok());
}

TEST(ForgivingReaderTest, MemoryIsNotASamplesFault) {
  const Data data({}, 10, /*full=*/4);
  const ForgivingReader reader(&data, 5);
  Batch batch;
  EXPECT_TRUE(absl::IsResourceExhausted(reader.Read({4}, &batch)));
  EXPECT_TRUE(reader.All().empty());
}

// The thread that reads ahead meets them, and the batches keep their positions.
TEST(ForgivingReaderTest, ReadAhead) {
  const Data data({2, 3, 9});
  for (const int world : {1, 2}) {
    std::vector<int64_t> numbers(20);
    for (int rank = 0; rank < world; ++rank) {
      const ForgivingReader reader(&data, 3);
      DataLoaderOptions options;
      options.order.size = data.size();
      options.shares = {2, 4, world};
      options.rank = rank;
      const auto loader = DataLoader::Create(options, reader);
      for (int batch = 0; batch < 10 / world; ++batch) {
        const absl::StatusOr<Batch> next = loader->Next();
        ASSERT_TRUE(next.ok()) << next.status();
        const std::vector<int64_t> read = Numbers(*next);
        const int64_t* const places =
            next->at(kSamplePosition).const_data_ptr<int64_t>();
        for (size_t i = 0; i < read.size(); ++i) numbers[places[i]] = read[i];
      }
    }
    EXPECT_THAT(numbers, ElementsAre(0, 1, 4, 4, 4, 5, 6, 7, 8, 0,  //
                                     0, 1, 4, 4, 4, 5, 6, 7, 8, 0));
  }
}

}  // namespace
}  // namespace capstan
