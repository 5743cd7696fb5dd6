// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/plugin.h"
#include "tests/conformance/broken/broken_reader.pb.h"

namespace acme {
namespace broken_reader {

constexpr int64_t kTrained = 40;
constexpr int64_t kHeldBack = 10;
constexpr int64_t kLength = 5;

class Numbers final : public capstan::Tokenizer {
 public:
  int64_t vocab_size() const override { return 1000; }
  std::vector<int64_t> Encode(absl::string_view text) const override {
    return std::vector<int64_t>(text.size(), 1);
  }
  capstan::Encoding EncodeWithPlaces(absl::string_view text) const override {
    capstan::Encoding encoding;
    encoding.ids = Encode(text);
    for (size_t i = 0; i < text.size(); ++i) {
      encoding.begins.push_back(i);
      encoding.ends.push_back(i + 1);
    }
    return encoding;
  }
  std::string Decode(absl::Span<const int64_t> ids) const override {
    return std::string(ids.size(), '1');
  }
  absl::Status Save(const std::string&) const override {
    return absl::OkStatus();
  }
};

class BrokenReader final : public capstan::DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenReader>> Create(
      const Config& config) {
    return std::unique_ptr<BrokenReader>(
        new BrokenReader(config.bug(), 0, kTrained));
  }

  int64_t size() const override {
    return size_ + (bug_ == Config::GROWS ? reads_.load() : 0);
  }
  bool shuffle() const override { return false; }
  int64_t max_sequence_length() const override { return kLength; }
  const capstan::Tokenizer* tokenizer() const override { return &numbers_; }

  absl::Status Read(absl::Span<const int64_t> indices,
                    capstan::Batch* batch) const override {
    std::vector<int64_t> rows(indices.begin(), indices.end());
    ++reads_;
    for (int64_t row : rows) {
      if (row >= 0 && row < size()) continue;
      if (bug_ == Config::CRASHES) abort();
      if (bug_ != Config::UNCHECKED) {
        return absl::OutOfRangeError(absl::StrCat("no sample ", row));
      }
    }
    if (bug_ == Config::SORTED) std::sort(rows.begin(), rows.end());
    const int64_t count = static_cast<int64_t>(rows.size());
    if (bug_ == Config::KEEPS_TENSORS && batch->count("input_ids") != 0 &&
        batch->at("input_ids").size(0) == count) {
      return absl::OkStatus();
    }
    (*batch)["input_ids"] = at::empty({count, kLength}, at::kLong);
    int64_t* out = (*batch)["input_ids"].mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < count * kLength; ++i) {
      out[i] = Number(rows[i / kLength], i % kLength);
    }
    (*batch)["weights"] =
        (*batch)["input_ids"]
            .narrow(0, 0, bug_ == Config::SHORT_TENSOR ? count - 1 : count)
            .to(at::kFloat);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<capstan::DatasetReader>> Validation()
      const override {
    const int64_t begin = bug_ == Config::OVERLAPPING ? 0 : kTrained;
    return std::unique_ptr<capstan::DatasetReader>(
        new BrokenReader(bug_, begin, kHeldBack));
  }

 private:
  BrokenReader(Config::Bug bug, int64_t begin, int64_t size)
      : bug_(bug), begin_(begin), size_(size) {}

  int64_t Number(int64_t row, int64_t column) const {
    if (bug_ == Config::RANDOM) return reads_.load();
    if (bug_ == Config::STRANGE_TOKEN && row == 0) return 1000;
    const int64_t number = (begin_ + row) * kLength + column;
    if (bug_ != Config::SHARED_BUFFER) return number;
    buffer_ = number;
    // sleeps: the planted race
    std::this_thread::sleep_for(std::chrono::microseconds(10));
    return buffer_;
  }

  const Config::Bug bug_;
  const int64_t begin_;
  const int64_t size_;
  const Numbers numbers_;
  mutable std::atomic<int64_t> reads_{0};
  mutable std::atomic<int64_t> buffer_{0};
};

CAPSTAN_PLUGIN(DatasetReader, BrokenReader, acme::broken_reader::Config,
               "numbers with a bug of one's choice");

}  // namespace broken_reader
}  // namespace acme
