// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_
#define CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_index.h"

namespace capstan {
namespace chat {

enum Part { kTrain = 0, kHeldOut = 1 };

// Which rows of a source make which sample: what is held out, and what is
// packed with what. A mapped, cached file, or nothing where samples are rows.
class SampleTable {
 public:
  static absl::StatusOr<SampleTable> Open(const SourceFile& source,
                                          const RowIndex& index,
                                          Packing packing, int64_t max_length,
                                          double validation_fraction);

  int64_t size(Part part) const { return parts_[part].samples; }
  // Of the index's rows, ascending. *one is room for a row.
  absl::Span<const uint32_t> Rows(Part part, int64_t sample,
                                  uint32_t* one) const;

 private:
  struct Samples {
    int64_t samples = 0;
    // With packing, sample i is rows[begins[i]] on; else rows[i]; where both
    // are empty, row i.
    absl::Span<const uint64_t> begins;
    absl::Span<const uint32_t> rows;
  };

  SampleTable() = default;

  std::shared_ptr<const MappedFile> file_;
  std::array<Samples, 2> parts_;
};

// How many of `rows`, by the lowest hashes, are round(fraction * rows), and at
// least one; equal hashes go together. The greatest hash that is held out.
// Returns INVALID_ARGUMENT if that leaves nothing on one side.
absl::StatusOr<uint64_t> HeldOutBelow(absl::Span<const IndexedRow> rows,
                                      double fraction);

}  // namespace chat
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_CHAT_SAMPLE_TABLE_H_
