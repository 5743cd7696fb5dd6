// SPDX-License-Identifier: Apache-2.0
//
// Cached files derived from a data file: in the folder .capstan next to it or,
// if that isn't writable, in $XDG_CACHE_HOME/capstan (~/.cache/capstan).
#ifndef CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_
#define CAPSTAN_DATASETS_CHAT_ROW_INDEX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/status.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row_encoder.h"
#include "datasets/chat/source_file.h"

namespace capstan::chat {

// A 64-bit hash of `bytes`, the same on every machine: CRC-64 and a finaliser.
// For file names and for choosing rows; not cryptographic.
uint64_t HashOf(absl::string_view bytes);

// What a cached file depends on, field by field.
class CacheKey {
 public:
  CacheKey& Add(absl::string_view field);
  CacheKey& Add(uint64_t field);
  // Adds the file's absolute path, size and modification time.
  absl::Status AddFile(const std::string& path);

  uint64_t hash() const { return HashOf(fields_); }

 private:
  std::string fields_;
};

// The path of `data_path`'s cached file with this key and extension. If none
// exists for which is_valid(path) holds, make(file) writes it atomically; other
// processes that need it wait.
absl::StatusOr<std::string> CachedFile(
    const std::string& data_path, uint64_t key, const std::string& extension,
    const std::function<bool(const std::string&)>& is_valid,
    const std::function<absl::Status(HiddenFile*)>& make);

// Maps the cached file, made if need be. It begins with a Header {magic, key,
// ..}, whose Fits(bytes) says whether a whole file has that many bytes.
template <typename Header>
absl::StatusOr<std::shared_ptr<const MappedFile>> MapCached(
    const std::string& data_path, uint64_t key, const std::string& extension,
    const std::function<absl::Status(HiddenFile*)>& make) {
  const auto is_whole = [key](const MappedFile& file) {
    if (file.bytes().size() < sizeof(Header)) return false;
    const auto& header = *reinterpret_cast<const Header*>(file.bytes().data());
    return header.magic == Header().magic && header.key == key &&
           header.Fits(file.bytes().size());
  };
  const auto is_valid = [&](const std::string& path) {
    const auto file = MappedFile::Open(path);
    return file.ok() && is_whole(**file);
  };
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string path,
      CachedFile(data_path, key, extension, is_valid, make));
  CAPSTAN_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file,
                           MappedFile::Open(path));
  if (is_whole(*file)) return file;
  return absl::DataLossError(
      absl::StrCat(path, " changed while it was opened: start again"));
}

// The bytes of `size` values.
template <typename T>
absl::string_view BytesOf(const T* values, size_t size) {
  return {reinterpret_cast<const char*>(values), size * sizeof(T)};
}

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
    uint64_t chats = 0;      // of `rows`: conversations, not plain texts
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

  const Facts& facts() const { return *facts_; }
  absl::Span<const IndexedRow> rows() const { return rows_; }
  // The key of everything that the index depends on.
  uint64_t key() const { return key_; }

 private:
  RowIndex() = default;

  std::shared_ptr<const MappedFile> file_;
  const Facts* facts_ = nullptr;
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
