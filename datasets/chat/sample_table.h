// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_
#define CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_index.h"

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

// Pack i is items[begins[i]] to items[begins[i + 1]], exclusive.
struct Packs {
  std::vector<uint64_t> begins = {0};
  std::vector<uint32_t> items;
};

// What the samples of a source consist of, of the config's part and, for
// training, of what is held out: which rows, and what is packed together. In
// memory: 4 bytes a row, and up to 20 more if rows are packed.
//
// WRAPPED is what TRL calls "wrapped" (_pack_wrapped of trl/data_utils.py), for
// the part as a whole: samples are the max_length tokens from i * max_length
// on, the last may be shorter. BEST_FIT_SPLIT is its "bfd_split": pieces of at
// most max_length tokens of each row, packed best-fit decreasing.
class SampleTable {
 public:
  // `rows` must outlive the table, and keep their tokens if they are cut. The
  // config is complete. INVALID_ARGUMENT if one of the parts that it asks for
  // would be empty.
  static absl::StatusOr<SampleTable> Create(const SourceRows* rows,
                                            const Config& config);

  int64_t size(Part part) const;
  int64_t tokens(Part part) const { return parts_[part].tokens; }
  // Without packing: the sample's row.
  uint32_t Row(Part part, int64_t sample) const {
    return parts_[part].rows[sample];
  }
  // Without packing, or with BEST_FIT: the sample's rows, ascending.
  std::vector<uint32_t> Rows(Part part, int64_t sample) const;
  // If rows are cut: the pieces of one sample, each at most max_length tokens;
  // together, too. None if an index's file has changed since it was opened.
  std::vector<absl::Span<const uint32_t>> Pieces(Part part,
                                                 int64_t sample) const;

 private:
  // Of a row: max_length tokens, or as many as there are, from `begin` on.
  struct Piece {
    uint32_t row;
    uint32_t begin;
  };
  struct Samples {
    std::vector<uint32_t> rows;
    int64_t tokens = 0;
    Packs packs;                 // of rows or pieces
    std::vector<Piece> pieces;   // BEST_FIT_SPLIT
    std::vector<uint64_t> ends;  // WRAPPED: tokens up to each row's end
  };

  SampleTable(const SourceRows* rows, const Config& config)
      : source_(rows),
        packing_(config.packing()),
        max_length_(config.max_length()) {}
  Samples SamplesOf(std::vector<uint32_t> rows) const;
  void Pack(Samples* part) const;
  absl::Span<const uint32_t> PackAt(Part part, int64_t sample) const;

  const SourceRows* source_;
  Packing packing_;
  int64_t max_length_;
  std::array<Samples, Part_ARRAYSIZE> parts_;
};

// Holds out round(fraction * rows) of the rows with these hashes, at least one,
// by the lowest; equal hashes stay together. Returns the greatest hash held
// out, or INVALID_ARGUMENT if that leaves nothing on one side.
absl::StatusOr<uint64_t> HeldOutBelow(std::vector<uint64_t> hashes,
                                      double fraction);

// Best-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973):
// from the longest item on, each goes where it leaves the least room. Item i
// has lengths[i], from 1 to capacity; no item is cut. Packs are sorted by their
// first items, items in a pack by index. O(n log n).
Packs PackBestFit(absl::Span<const uint32_t> lengths, uint32_t capacity);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_
