// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_DATA_FORGIVING_READER_H_
#define CAPSTAN_TRAINER_DATA_FORGIVING_READER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/dataset.h"

namespace capstan {

// A sample that can't be read, and the reader's words.
struct BadSample {
  int64_t sample = 0;
  std::string why;
};

// Reads a dataset of which some samples can't be read: in the place of such a
// one it gives the next in the dataset that can be read (after the last the
// first, unless the dataset goes on). What a sample is replaced by depends on
// the dataset alone, so the batches are the same for any number of ranks.
// Thread-safe.
//
// Each failed read is tried again, sample by sample, so that only what fails
// twice is passed over. Out of memory isn't a sample's fault and is returned.
class ForgivingReader final : public DatasetReader {
 public:
  // Passes over at most `most` different samples. `reader` must outlive it.
  ForgivingReader(const DatasetReader* reader, int64_t most)
      : reader_(*reader), most_(most) {}

  int64_t size() const override { return reader_.size(); }
  bool shuffle() const override { return reader_.shuffle(); }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override;
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return reader_.Validation();
  }

  // Whether a sample was passed over.
  bool any() const { return any_; }
  // What was passed over to read `samples`, with the replacements that couldn't
  // be read either; ascending. A function of `samples` once they were read.
  std::vector<BadSample> BadAmong(absl::Span<const int64_t> samples) const;
  // All that this reader has met so far, ascending.
  std::vector<BadSample> All() const;

 private:
  // `sample`, or what replaces it as far as is known.
  int64_t Replaced(int64_t sample) const;
  absl::StatusOr<int64_t> FirstReadable(int64_t sample) const;
  absl::Status Remember(int64_t sample, const absl::Status& why) const;

  // The one in the dataset after `sample`.
  int64_t After(int64_t sample) const {
    return anew_ ? sample + 1 : (sample + 1) % size();
  }

  const DatasetReader& reader_;
  const bool anew_ = reader_.draws_anew();
  const int64_t most_;
  mutable std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::string> bad_;  // and why
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_DATA_FORGIVING_READER_H_
