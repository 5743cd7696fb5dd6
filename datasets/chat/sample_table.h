// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_
#define CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_index.h"

namespace capstan::chat {

// Several sources as one sequence of samples; sample i is a pure function of i.
// Without weights the sources are concatenated. With weights they are drawn in
// random order, each source by its share, until every sample of every source
// has come at least once. A source that repeats uses all of its samples before
// any comes again.
class Mixture {
 public:
  struct Draw {
    size_t source;
    int64_t sample;
  };

  // sizes: samples of each source, at least one greater than 0. weights: none,
  // or one greater than 0 per source.
  static absl::StatusOr<Mixture> Create(absl::Span<const int64_t> sizes,
                                        absl::Span<const double> weights,
                                        uint64_t seed);

  int64_t size() const { return ends_.back(); }
  Draw At(int64_t index) const;  // in [0, size())

 private:
  Mixture() = default;

  bool weighted_ = false;
  uint64_t order_key_ = 0;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> ends_;  // cumulative draws of the sources
  std::vector<uint64_t> keys_;
};

enum Part { kTrain = 0, kHeldOut = 1 };

// Maps samples to rows of a source: what is held out, and what is packed
// together. A mapped, cached file, or empty if samples are rows.
class SampleTable {
 public:
  static absl::StatusOr<SampleTable> Open(const SourceFile& source,
                                          const RowIndex& index,
                                          Packing packing, int64_t max_length,
                                          double validation_fraction);

  int64_t size(Part part) const { return parts_[part].samples; }
  // Indices of rows, ascending. *one is space for one row. Checked when the
  // table was opened; as other processes may write the file, there are none
  // if it has changed since, and each is to be checked when it is used.
  absl::Span<const uint32_t> Rows(Part part, int64_t sample,
                                  uint32_t* one) const;
  // After reading: DATA_LOSS if the file has become shorter.
  absl::Status Check() const;

 private:
  struct Samples {
    int64_t samples = 0;
    // With packing, sample i starts at rows[begins[i]]; otherwise it is
    // rows[i], or row i if both are empty.
    absl::Span<const uint64_t> begins;
    absl::Span<const uint32_t> rows;
  };

  using Parts = std::array<Samples, 2>;

  SampleTable() = default;
  // The parts of a file's contents; an error says what is wrong with them.
  static absl::StatusOr<Parts> PartsOf(absl::string_view contents, size_t rows);

  std::shared_ptr<const MappedFile> file_;
  Parts parts_;
};

// Holds out round(fraction * rows) of `rows`, at least one, by the lowest
// hashes; equal hashes stay together. Returns the greatest hash held out, or
// INVALID_ARGUMENT if that leaves nothing on one side.
absl::StatusOr<uint64_t> HeldOutBelow(absl::Span<const IndexedRow> rows,
                                      double fraction);

// Pack i is items[begins[i]] to items[begins[i + 1]], exclusive.
struct Packs {
  std::vector<uint64_t> begins = {0};
  std::vector<uint32_t> items;
};

// Best-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973):
// from the longest item on, each goes where it leaves the least room. Item i
// has lengths[i], from 1 to capacity; no item is cut. Packs are sorted by their
// first items, items in a pack by index. O(n log n).
Packs PackBestFit(absl::Span<const uint32_t> lengths, uint32_t capacity);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_
