// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_SOURCE_FILE_H_
#define CAPSTAN_DATASETS_CHAT_SOURCE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files.h"

namespace capstan::chat {

// A data file as JSON text in memory.
struct SourceFile {
  std::string path;  // as in the config, for errors
  std::shared_ptr<const MappedFile> file;
  absl::string_view text;  // of `file`
  // A line is a row of a table.
  bool is_table = false;
  uint64_t bytes = 0;    // of the file at `path`
  uint64_t members = 0;  // of a packed file: ByteStream::members

  // "chats.jsonl:17", "chats.parquet: row 17"
  std::string PlaceOf(uint64_t line) const;
};

// Maps `path`, or what it becomes, which is made once, in a cached file of at
// most `most` bytes (0: what the size of the file allows): gzip and zstd, by
// their first bytes, are unpacked; Parquet, by its first bytes, and CSV and
// TSV, by name, become JSON lines (table_file.h). A name that says packed and
// bytes that don't are an error.
absl::StatusOr<SourceFile> OpenSource(const std::string& path,
                                      uint64_t most = 0);

struct RowPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t line = 0;  // from 1; of its first byte
};

// Splits a text into rows without parsing them. The text is one JSON object (or
// ["question", ..]) per line, a JSON list, or an object whose "data" is a list,
// detected by its beginning.
class RowScanner {
 public:
  explicit RowScanner(absl::string_view text);

  // The next rows, of about `bytes` in total (at least one); none at the end.
  // Skips blank lines. Returns an error, with its line, for a list with wrong
  // syntax between rows.
  absl::Status Next(uint64_t bytes, std::vector<RowPlace>* rows);

 private:
  void NextLines(uint64_t bytes, std::vector<RowPlace>* rows);
  absl::Status NextElements(uint64_t bytes, std::vector<RowPlace>* rows);
  void SkipSpace();
  void SkipValue();
  absl::string_view ReadString();
  bool EnterDataList();
  absl::Status Wrong(absl::string_view what) const;

  const absl::string_view text_;
  uint64_t at_ = 0;
  uint64_t line_ = 1;
  bool is_list_ = false;
  bool is_first_ = true;    // no element of the list yet
  bool is_closed_ = false;  // the list's end is before at_
};

// The line number, from 1, of a byte of the text.
uint64_t LineOf(absl::string_view text, uint64_t offset);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_SOURCE_FILE_H_
