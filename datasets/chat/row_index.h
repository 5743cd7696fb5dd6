// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_
#define CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_encoder.h"
#include "datasets/chat/source_file.h"

namespace capstan::chat {

// A row that is trained on, as stored in the index file.
struct IndexedRow {
  uint64_t offset;  // in the source's text
  uint64_t hash;    // of its bytes
  uint32_t bytes;
  uint32_t tokens;   // after truncation
  uint32_t trained;  // of them; at least 1
  uint32_t unused;
};
static_assert(sizeof(IndexedRow) == 32, "a file's layout");

// The result of one pass over a source: a mapped file, so that a source of any
// size needs almost no memory.
class RowIndex {
 public:
  struct Facts {
    uint64_t rows = 0;       // in the index
    uint64_t untrained = 0;  // left out: no token to train on
    uint64_t bad = 0;        // left out, if the config says so
    uint64_t cut = 0;        // of `rows`: longer than max_length
    // Of `rows`: their template knows no tools (RenderedChat::tools_as_text).
    uint64_t tools_as_text = 0;
    uint64_t chats = 0;  // of `rows`: conversations, not plain texts
    uint64_t tokens = 0;
    uint64_t trained = 0;
    uint64_t longest = 0;  // tokens of the longest row, after truncation
    char first_bad[256] = {};
  };

  // The cached index, or a new one, for which all of the machine's cores parse,
  // render and tokenize every row. `tokenizer_hash` identifies everything that
  // the tokenizer depends on. The first bad row of the file is an error
  // ("FILE:LINE: ..") unless such rows are skipped. Joins the threads that it
  // starts.
  static absl::StatusOr<RowIndex> Open(const SourceFile& source, Kind kind,
                                       BadRows bad_rows,
                                       const RowEncoder& encoder,
                                       uint64_t tokenizer_hash);

  const Facts& facts() const { return facts_; }
  // Checked when the index was opened; other processes may write the file.
  absl::Span<const IndexedRow> rows() const { return rows_; }
  // The key of everything that the index depends on.
  uint64_t key() const { return key_; }
  // After reading: DATA_LOSS if the file has become shorter.
  absl::Status Check() const { return file_->Check(); }

 private:
  RowIndex() = default;
  // Takes a file's contents: rows, and then the facts. An error says what is
  // wrong with them.
  absl::Status Take(absl::string_view contents, uint64_t text_bytes,
                    int64_t max_length);

  std::shared_ptr<const MappedFile> file_;
  Facts facts_;
  absl::Span<const IndexedRow> rows_;
  uint64_t key_ = 0;
};

struct IndexOptions {
  Kind kind;
  BadRows bad_rows;
  const RowEncoder* encoder;
  uint64_t chunk_bytes = 1 << 20;
};

// One pass over a source by all of the machine's cores, in memory for a few
// chunks. Passes the rows to `sink`, in file order whatever the number of
// threads. Returns the error of the first wrong row in file order.
absl::StatusOr<RowIndex::Facts> IndexRows(
    const SourceFile& source, const IndexOptions& options,
    const std::function<absl::Status(absl::Span<const IndexedRow>)>& sink);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_
