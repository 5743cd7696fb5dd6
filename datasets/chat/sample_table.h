// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_
#define CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_encoder.h"
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

// Whether samples are pieces of rows, which may then have any length.
inline bool CutsRows(Packing packing) {
  return packing == WRAPPED || packing == BEST_FIT_SPLIT;
}

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

// What the samples of a source's parts consist of: what is held out, what is
// packed together, and, for the packings that cut rows, the tokens: reading a
// part of a long row must not tokenize all of it again. A mapped, cached file,
// or empty if samples are rows.
//
// WRAPPED is what TRL calls "wrapped" (_pack_wrapped of trl/data_utils.py), for
// the part as a whole: samples are the max_length tokens from i * max_length
// on, the last may be shorter. BEST_FIT_SPLIT is its "bfd_split": pieces of at
// most max_length tokens of each row, packed best-fit decreasing.
class SampleTable {
 public:
  // Set in a token that isn't trained on.
  static constexpr uint32_t kUntrained = uint32_t{1} << 31;

  // Row -> its tokens, not cut; called by several threads.
  using ReadRow = std::function<absl::StatusOr<const TokenRow*>(size_t row)>;

  static absl::StatusOr<SampleTable> Open(const SourceRows& rows,
                                          const SampleOptions& options,
                                          const ReadRow& read);

  int64_t size(Part part) const;
  // Whether samples are pieces, four bytes a token, and not rows.
  bool keeps_tokens() const { return CutsRows(options_.packing); }
  int64_t tokens(Part part) const {
    return static_cast<int64_t>(parts_[part].tokens.size());
  }
  // Indices of rows, ascending. *one is space for one row. Checked when the
  // table was opened; as other processes may write the file, there are none
  // if it has changed since, and each is to be checked when it is used.
  absl::Span<const uint32_t> Rows(Part part, int64_t sample,
                                  uint32_t* one) const {
    return Items(parts_[part], sample, one);
  }
  // The pieces of one sample, each at most max_length tokens; together, too.
  // None if the file has changed since it was opened.
  std::vector<absl::Span<const uint32_t>> Pieces(Part part,
                                                 int64_t sample) const;
  // After reading: DATA_LOSS if the file has become shorter.
  absl::Status Check() const;

 private:
  struct Samples {
    // With packing, sample i is items[begins[i]] to items[begins[i + 1]],
    // exclusive; otherwise it is items[i]. WRAPPED has neither.
    absl::Span<const uint64_t> begins;
    absl::Span<const uint32_t> items;  // rows, or pieces
    // BEST_FIT_SPLIT: piece i is tokens [pieces[i], pieces[i + 1]).
    absl::Span<const uint64_t> pieces;
    absl::Span<const uint32_t> tokens;
  };

  explicit SampleTable(const SampleOptions& options) : options_(options) {}
  // Takes a file's contents; an error says what is wrong with them.
  absl::Status Take(absl::string_view contents, size_t rows);
  bool AreRight(const Samples& part, size_t rows) const;
  static absl::Span<const uint32_t> Items(const Samples& part, int64_t sample,
                                          uint32_t* one);

  SampleOptions options_;
  std::shared_ptr<const MappedFile> file_;  // null: samples are rows
  int64_t rows_ = 0;                        // without a file
  std::array<Samples, Part_ARRAYSIZE> parts_;
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
