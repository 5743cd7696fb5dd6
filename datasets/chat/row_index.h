// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_
#define CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_

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
#include "datasets/chat/source_file.h"

namespace capstan::chat {

// A row that is trained on, as stored in the index file.
struct IndexedRow {
  uint64_t offset;       // in the source's text
  uint64_t hash;         // of its bytes
  uint64_t first_token;  // among the kept tokens, if they are kept
  uint32_t bytes;
  uint32_t tokens;  // after truncation
};
static_assert(sizeof(IndexedRow) == 32, "a file's layout");

// Set in a kept token that isn't trained on.
inline constexpr uint32_t kUntrained = uint32_t{1} << 31;

struct IndexOptions {
  Kind kind;
  BadRows bad_rows;
  const RowEncoder* encoder;
  // Whether the rows' tokens are kept in the index, for samples that are pieces
  // of rows: reading a part of a long row must not tokenize all of it again.
  bool keeps_tokens = false;
  uint64_t chunk_bytes = 1 << 20;
};

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
    uint64_t longest = 0;  // tokens of the longest row, after truncation
    char first_bad[256] = {};
  };

  // The cached index, or a new one, for which all of the machine's cores parse,
  // render and tokenize every row. `tokenizer_hash` identifies everything that
  // the tokenizer depends on. The first bad row of the file is an error
  // ("FILE:LINE: ..") unless such rows are skipped. Joins the threads that it
  // starts.
  static absl::StatusOr<RowIndex> Open(const SourceFile& source,
                                       const IndexOptions& options,
                                       uint64_t tokenizer_hash);

  const Facts& facts() const { return facts_; }
  // Checked when the index was opened; other processes may write the file.
  absl::Span<const IndexedRow> rows() const { return rows_; }
  // The kept tokens of one of the rows; empty if the file has changed since it
  // was opened.
  absl::Span<const uint32_t> TokensOf(const IndexedRow& row) const;
  // After reading: DATA_LOSS if the file has become shorter.
  absl::Status Check() const { return file_->Check(); }

 private:
  RowIndex() = default;
  // Takes a file's contents: tokens, rows, and then the facts. An error says
  // what is wrong with them.
  absl::Status Take(absl::string_view contents, uint64_t text_bytes,
                    const IndexOptions& options);

  std::shared_ptr<const MappedFile> file_;
  Facts facts_;
  absl::Span<const uint32_t> tokens_;  // of all rows, if they are kept
  absl::Span<const IndexedRow> rows_;
};

// Some of a source's rows, and, if they are kept, their tokens.
struct IndexedRows {
  std::vector<IndexedRow> rows;
  std::vector<uint32_t> tokens;
  RowIndex::Facts facts;
  uint64_t end = 0;  // offset of its end in the text
};

// One pass over a source by all of the machine's cores, in memory for a few
// chunks. Passes the rows to `sink`, in file order whatever the number of
// threads. Returns the error of the first wrong row in file order.
absl::StatusOr<RowIndex::Facts> IndexRows(
    const SourceFile& source, const IndexOptions& options,
    const std::function<absl::Status(const IndexedRows&)>& sink);

// The rows of a source, file after file. Thread-safe once open.
class SourceRows {
 public:
  struct File {
    SourceFile file;
    std::unique_ptr<RowIndex> index;
    size_t end = 0;  // one past its last row
  };
  // A row, and where it is.
  struct Place {
    const File* file;
    IndexedRow row;
  };

  // Opens and indexes what `path` stands for (data_paths.h).
  static absl::StatusOr<SourceRows> Open(const std::string& path,
                                         const IndexOptions& options,
                                         uint64_t tokenizer_hash);

  size_t size() const { return files_.back().end; }
  Place At(size_t row) const;  // in [0, size())
  const std::vector<File>& files() const { return files_; }
  // Names the source in messages.
  const std::string& first_path() const { return files_[0].file.path; }
  bool has_chats() const;
  // After reading: DATA_LOSS if an index's file has become shorter.
  absl::Status Check() const;

 private:
  std::vector<File> files_;
};

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_
