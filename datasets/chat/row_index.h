// SPDX-License-Identifier: Apache-2.0
//
// Files that are made from a data file once and kept: in the folder .capstan
// beside it or, where that can't be written, in $XDG_CACHE_HOME/capstan
// (~/.cache/capstan).
#ifndef CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_
#define CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/output_file.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_encoder.h"
#include "datasets/chat/source_file.h"

namespace capstan {
namespace chat {

// 64 well-mixed bits of `bytes`, the same on every machine: CRC-64 and a
// finaliser. For names of files and for a choice of rows; not against forgers.
uint64_t HashOf(absl::string_view bytes);

// What a cached file depends on, field by field.
class CacheKey {
 public:
  CacheKey& Add(absl::string_view field);
  CacheKey& Add(uint64_t field);
  // The file's absolute path, its size and when it was last written.
  absl::Status AddFile(const std::string& path);

  uint64_t hash() const { return HashOf(fields_); }

 private:
  std::string fields_;
};

// The path of `data_path`'s cached file of this key and extension. Where there
// is none for which is_valid(path) holds, make(file) writes one, which lands
// whole; processes that ask for it meanwhile wait.
absl::StatusOr<std::string> CachedFile(
    const std::string& data_path, uint64_t key, const std::string& extension,
    const std::function<bool(const std::string&)>& is_valid,
    const std::function<absl::Status(HiddenFile*)>& make);

// A row that is trained on, as it lies in the index's file.
struct IndexedRow {
  uint64_t offset;  // in the source's text
  uint64_t hash;    // of its bytes
  uint32_t bytes;
  uint32_t tokens;   // after truncation
  uint32_t trained;  // of them; at least 1
  uint32_t unused;
};
static_assert(sizeof(IndexedRow) == 32, "a file's layout");

// What one pass over a source has found: a mapped file, so that a source of
// any size costs no memory to speak of.
class RowIndex {
 public:
  struct Facts {
    uint64_t rows = 0;       // in the index
    uint64_t untrained = 0;  // left out: no token to train on
    uint64_t bad = 0;        // left out, as the config says
    uint64_t cut = 0;        // of `rows`: longer than max_length
    uint64_t chats = 0;      // of `rows`: conversations, not plain texts
    uint64_t tokens = 0;
    uint64_t trained = 0;
    uint64_t longest = 0;  // tokens of the longest row, after truncation
    char first_bad[256] = {};
  };

  // The cached index, or a new one: every row is parsed, rendered, tokenized,
  // by all of the machine's cores. `tokenizer_hash` stands for all that the
  // tokenizer depends on. The first bad row of the file is an error
  // ("FILE:LINE:
  // ..") unless they are skipped. Threads that are started have ended.
  static absl::StatusOr<RowIndex> Open(const SourceFile& source, Kind kind,
                                       BadRows bad_rows,
                                       const RowEncoder& encoder,
                                       uint64_t tokenizer_hash);

  const Facts& facts() const { return *facts_; }
  absl::Span<const IndexedRow> rows() const { return rows_; }
  // Of all that the index depends on.
  uint64_t key() const { return key_; }

 private:
  RowIndex() = default;

  std::shared_ptr<const MappedFile> file_;
  const Facts* facts_ = nullptr;
  absl::Span<const IndexedRow> rows_;
  uint64_t key_ = 0;
};

}  // namespace chat
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_
