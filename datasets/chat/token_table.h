// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_TOKEN_TABLE_H_
#define CAPSTAN_DATASETS_CHAT_TOKEN_TABLE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_encoder.h"
#include "datasets/chat/sample_table.h"
#include "datasets/chat/source_rows.h"

namespace capstan::chat {

// The tokens of a source's rows, for the packings that cut rows: reading a part
// of a long one must not tokenize all of it again. A mapped, cached file, four
// bytes a token.
//
// WRAPPED is what TRL calls "wrapped" (_pack_wrapped of trl/data_utils.py), for
// the part as a whole: samples are the max_length tokens from i * max_length
// on, the last may be shorter. BEST_FIT_SPLIT is its "bfd_split": pieces of at
// most max_length tokens of each row, packed best-fit decreasing.
class TokenTable {
 public:
  // Set in a token that isn't trained on.
  static constexpr uint32_t kUntrained = uint32_t{1} << 31;

  // Row -> its tokens, not cut; called by several threads.
  using ReadRow = std::function<absl::StatusOr<const TokenRow*>(size_t row)>;

  static absl::StatusOr<TokenTable> Open(const SourceRows& rows,
                                         const SampleOptions& options,
                                         const ReadRow& read);

  int64_t size(Part part) const;
  int64_t tokens(Part part) const {
    return static_cast<int64_t>(parts_[part].tokens.size());
  }
  // The pieces of one sample, each at most max_length tokens; together, too.
  // None if the file has changed since it was opened.
  std::vector<absl::Span<const uint32_t>> Pieces(Part part,
                                                 int64_t sample) const;
  // After reading: DATA_LOSS if the file has become shorter.
  absl::Status Check() const { return file_->Check(); }

 private:
  struct Tokens {
    absl::Span<const uint32_t> tokens;
    // BEST_FIT_SPLIT: piece i is tokens [pieces[i], pieces[i + 1]); pack p has
    // the pieces items[packs[p]] to items[packs[p + 1]], exclusive.
    absl::Span<const uint64_t> pieces;
    absl::Span<const uint64_t> packs;
    absl::Span<const uint32_t> items;
  };
  using Parts = std::array<Tokens, Part_ARRAYSIZE>;

  TokenTable() = default;
  static absl::StatusOr<Parts> PartsOf(absl::string_view contents,
                                       const SampleOptions& options);

  std::shared_ptr<const MappedFile> file_;
  int64_t max_length_ = 0;
  bool wrapped_ = false;
  Parts parts_;
};

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_TOKEN_TABLE_H_
