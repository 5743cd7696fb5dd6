// SPDX-License-Identifier: Apache-2.0
//
// Tables as rows: Parquet, CSV and TSV become JSON lines, by Arrow, in a child
// process. What a hostile file does to Arrow (memory, time, a crash) ends the
// child, and its threads never meet the fork of the ranks.
#ifndef CAPSTAN_DATASETS_CHAT_TABLE_FILE_H_
#define CAPSTAN_DATASETS_CHAT_TABLE_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "datasets/chat/unpack.h"

namespace capstan::chat {

enum class Table { kNot, kParquet, kCsv, kTsv };

// Parquet by its first bytes, CSV and TSV by its name (chats.csv,
// chats.tsv.gz).
Table TableOf(const std::string& path, absl::string_view bytes);

// Passes the table's rows to `sink`, as lines of JSON, in pieces; returns the
// members of a packed file (ByteStream::members). Errors name the file: not
// such a table, damaged, more than `most` bytes of lines, those of `sink`;
// UNIMPLEMENTED without Arrow, saying how to get it.
absl::StatusOr<uint64_t> TableRows(
    const std::string& path, Table table, Packed packed, uint64_t most,
    const std::function<absl::Status(absl::string_view)>& sink);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_TABLE_FILE_H_
