// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_
#define CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/source_rows.h"

namespace capstan::chat {

// Several sources as one sequence of samples; sample i is a pure function of i.
// Without weights the sources are concatenated. With weights they are drawn in
// random order, each source by its share, and the sequence is endless: each
// size() of it are an epoch, with an order of its own. A source goes on in an
// epoch where it was in the one before, and uses all of its samples before any
// comes again.
class Mixture {
 public:
  struct Draw {
    size_t source;
    int64_t sample;
  };

  // sizes: samples of each source, at least one greater than 0. weights: none,
  // or one greater than 0 per source. epoch: its samples, with weights; 0:
  // until every sample of every source has come at least once.
  static absl::StatusOr<Mixture> Create(absl::Span<const int64_t> sizes,
                                        absl::Span<const double> weights,
                                        uint64_t seed, int64_t epoch = 0);

  // Samples of an epoch.
  int64_t size() const { return ends_.back(); }
  // Whether At takes indices from size() on.
  bool endless() const { return weighted_; }
  Draw At(int64_t index) const;  // at least 0

 private:
  Mixture() = default;
  static absl::StatusOr<std::vector<int64_t>> Draws(
      absl::Span<const int64_t> sizes, absl::Span<const double> weights,
      int64_t epoch);

  bool weighted_ = false;
  uint64_t order_key_ = 0;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> ends_;  // cumulative draws of the sources
  std::vector<uint64_t> keys_;
};

// What a table of samples depends on, besides the rows.
struct SampleOptions {
  Packing packing = NONE;
  int64_t max_length = 0;
  double validation_fraction = 0;
  Split split;  // all 0: by validation_fraction
  uint64_t seed = 0;

  // All of it, for a cache's key.
  std::string Text() const;
};

// The rows of each part, ascending; INVALID_ARGUMENT if one of the parts that
// are wanted would be empty.
using PartRows = std::array<std::vector<uint32_t>, Part_ARRAYSIZE>;
absl::StatusOr<PartRows> SplitRows(const SourceRows& rows,
                                   const SampleOptions& options);

// Maps samples to rows of a source: what is held out, and what is packed
// together (NONE or BEST_FIT). A mapped, cached file, or empty if samples are
// rows.
class SampleTable {
 public:
  static absl::StatusOr<SampleTable> Open(const SourceRows& rows,
                                          const SampleOptions& options);

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

  using Parts = std::array<Samples, Part_ARRAYSIZE>;

  SampleTable() = default;
  // The parts of a file's contents; an error says what is wrong with them.
  static absl::StatusOr<Parts> PartsOf(absl::string_view contents, size_t rows);

  std::shared_ptr<const MappedFile> file_;
  Parts parts_;
};

// Holds out round(fraction * rows) of the rows with these hashes, at least one,
// by the lowest; equal hashes stay together. Returns the greatest hash held
// out, or INVALID_ARGUMENT if that leaves nothing on one side.
absl::StatusOr<uint64_t> HeldOutBelow(std::vector<uint64_t> hashes,
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
