// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "tests/conformance/dataset_reader.h"
#include "tests/conformance/ranks.h"

namespace capstan {
namespace conformance {
namespace {

constexpr double kSilence = 20.0;  // seconds

bool Same(const Batch& a, const Batch& b) {
  if (a.size() != b.size()) return false;
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](const auto& left, const auto& right) {
                      return left.first == right.first &&
                             left.second.sizes() == right.second.sizes() &&
                             left.second.equal(right.second);
                    });
}

// Row `row` of a batch, cut to the size of `like`, a batch of one: samples may
// be padded at the end to the longest of a batch.
Batch Row(const Batch& batch, int64_t row, const Batch& like) {
  Batch out;
  for (const auto& [name, tensor] : batch) {
    at::Tensor one = tensor.narrow(0, row, 1);
    const auto same = like.find(name);
    if (same != like.end() && same->second.dim() == one.dim()) {
      for (int64_t d = 1; d < one.dim(); ++d) {
        one = one.narrow(d, 0, std::min(one.size(d), same->second.size(d)));
      }
    }
    out[name] = one;
  }
  return out;
}

// Up to `most` samples, spread over the whole data, including the last.
std::vector<int64_t> Spread(const DatasetReader& reader, int64_t most) {
  const int64_t count = std::min(most, reader.size());
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(count == 1 ? 0 : i * (reader.size() - 1) / (count - 1));
  }
  return indices;
}

std::string BytesOf(const Batch& sample) {
  std::string bytes;
  for (const auto& [name, tensor] : sample) {
    const at::Tensor flat = tensor.contiguous();
    bytes += name;
    bytes.append(static_cast<const char*>(flat.const_data_ptr()),
                 flat.nbytes());
  }
  return bytes;
}

TEST_P(DatasetReaderConformance, SizeIsPositiveAndConstant) {
  const int64_t size = reader().size();
  ASSERT_GE(size, 8) << "give the suite more samples";
  MustRead(reader(), {0, size - 1});
  EXPECT_EQ(reader().size(), size);
  EXPECT_EQ(New()->size(), size);
  EXPECT_EQ(reader().shuffle(), New()->shuffle());
}

TEST_P(DatasetReaderConformance, BatchesAreWholeTensorsInHostMemory) {
  for (const std::vector<int64_t>& indices :
       {std::vector<int64_t>{0}, Spread(reader(), 7)}) {
    const Batch batch = MustRead(reader(), indices);
    EXPECT_FALSE(batch.empty());
    for (const auto& [name, tensor] : batch) {
      SCOPED_TRACE(name);
      ASSERT_TRUE(tensor.defined());
      EXPECT_TRUE(tensor.is_cpu());
      ASSERT_GE(tensor.dim(), 1);
      EXPECT_EQ(tensor.size(0), static_cast<int64_t>(indices.size()));
    }
  }
}

TEST_P(DatasetReaderConformance, ReadIsAFunctionOfItsIndices) {
  const std::vector<int64_t> indices = Spread(reader(), 7);
  const Batch first = MustRead(reader(), indices);
  MustRead(reader(), {indices.back(), 0});
  EXPECT_TRUE(Same(MustRead(reader(), indices), first)) << "read again";
  EXPECT_TRUE(Same(MustRead(*New(), indices), first)) << "by another reader";
}

// The core passes a reader the tensors of an earlier batch for reuse.
TEST_P(DatasetReaderConformance, AUsedBatchIsReadAnew) {
  const std::vector<int64_t> first = Spread(reader(), 3);
  const std::vector<int64_t> others = {1, 0, 2};
  for (const std::vector<int64_t>& next :
       {others, std::vector<int64_t>{reader().size() - 1}}) {
    Batch batch = MustRead(reader(), first);
    ASSERT_TRUE(reader().Read(next, &batch).ok());
    EXPECT_TRUE(Same(batch, MustRead(reader(), next)))
        << "something of the earlier batch is left";
  }
}

TEST_P(DatasetReaderConformance, RowsComeInTheOrderOfTheIndices) {
  const int64_t last = reader().size() - 1;
  const std::vector<int64_t> indices = {3, 1, last, 1, 0};
  const Batch batch = MustRead(reader(), indices);
  for (size_t i = 0; i < indices.size(); ++i) {
    const Batch one = MustRead(reader(), {indices[i]});
    EXPECT_TRUE(Same(Row(batch, i, one), one))
        << "row " << i << " is not sample " << indices[i];
  }
}

TEST_P(DatasetReaderConformance, ThreadsMayReadAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20;
  const std::vector<int64_t> samples = Spread(reader(), 16);
  std::vector<Batch> want;
  for (int64_t sample : samples) want.push_back(MustRead(reader(), {sample}));
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < kRounds * samples.size(); ++i) {
        const size_t which = (i * (2 * t + 1) + t) % samples.size();
        Batch batch;
        const bool ok = reader().Read({samples[which]}, &batch).ok();
        wrong[t] += ok && Same(batch, want[which]) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(wrong[t], 0) << "thread " << t;
}

// In a separate process, which may crash.
TEST_P(DatasetReaderConformance, AnIndexThatIsNotThereIsAnError) {
  const WorldResult result =
      RunRanks(1, kSilence, [&](ProcessGroup*, RankReport* report) {
        for (int64_t index : {reader().size(), int64_t{-1}}) {
          Batch batch;
          report->Begin(std::to_string(index));
          const absl::Status status = reader().Read({index}, &batch);
          if (status.ok()) report->Problem("read", std::to_string(index));
        }
        return absl::OkStatus();
      });
  EXPECT_EQ(result.failure, "");
  for (const auto& [topic, index] : result.ranks[0].problems) {
    ADD_FAILURE() << "sample " << index << " of " << reader().size()
                  << " was read";
  }
}

TEST_P(DatasetReaderConformance, ValidationIsConstantAndApart) {
  absl::StatusOr<std::unique_ptr<DatasetReader>> held = reader().Validation();
  ASSERT_TRUE(held.ok()) << held.status().message();
  if (*held == nullptr) GTEST_SKIP() << "holds nothing back";
  ASSERT_GT((*held)->size(), 0);
  absl::StatusOr<std::unique_ptr<DatasetReader>> again = New()->Validation();
  ASSERT_TRUE(again.ok() && *again != nullptr);
  EXPECT_EQ((*again)->size(), (*held)->size());

  constexpr int64_t kMost = 500;
  std::set<std::string> trained;
  int64_t read = 0;
  for (int64_t sample : Spread(reader(), kMost)) {
    trained.insert(BytesOf(MustRead(reader(), {sample})));
    ++read;
  }
  for (int64_t sample : Spread(**held, kMost)) {
    const Batch batch = MustRead(**held, {sample});
    EXPECT_TRUE(Same(MustRead(**again, {sample}), batch)) << sample;
    // Data with equal samples can't show it.
    if (static_cast<int64_t>(trained.size()) < read) continue;
    EXPECT_EQ(trained.count(BytesOf(batch)), 0)
        << "validation sample " << sample << " is trained on";
  }
}

TEST_P(DatasetReaderConformance, TokensAreTheTokenizers) {
  const Tokenizer* tokenizer = reader().tokenizer();
  if (tokenizer == nullptr) GTEST_SKIP() << "not text";
  const int64_t vocabulary = tokenizer->vocab_size();
  ASSERT_GT(vocabulary, 0);
  for (int64_t id : tokenizer->Encode("A line of text.\n")) {
    EXPECT_TRUE(id >= 0 && id < vocabulary) << id;
  }
  const Batch batch = MustRead(reader(), Spread(reader(), 16));
  const auto ids = batch.find("input_ids");
  if (ids == batch.end()) return;
  EXPECT_EQ(ids->second.scalar_type(), at::kLong);
  EXPECT_GE(ids->second.min().item<int64_t>(), 0);
  EXPECT_LT(ids->second.max().item<int64_t>(), vocabulary);
  EXPECT_LE(ids->second.size(1), reader().max_sequence_length());
}

}  // namespace

Batch DatasetReaderConformance::MustRead(const DatasetReader& reader,
                                         const std::vector<int64_t>& indices) {
  Batch batch;
  const absl::Status status = reader.Read(indices, &batch);
  EXPECT_TRUE(status.ok()) << status.message();
  return batch;
}

}  // namespace conformance
}  // namespace capstan
