// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_DATA_FILES_H_
#define CAPSTAN_DESK_DATA_FILES_H_

#include <google/protobuf/any.pb.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "text/rows/rows.h"

namespace capstan {

enum class FileKind { kRows, kHistories, kText };

// What `file` has: by its name; else by its first bytes. Rows, if it is a
// folder or a pattern.
FileKind KindOfFile(const std::string& file);

// How files of data may be read.
struct FileReadings {
  // Texts of configs with a train_data, the most particular first. The last is
  // for files whose rows none of them takes.
  std::vector<std::string> configs;
  bool needs_tokenizer = false;
};

// By the kind of the files, folders or patterns. length: tokens of a sample; 0:
// the default. INVALID_ARGUMENT if one reader can't read them all.
absl::StatusOr<FileReadings> ReadingsOf(const std::vector<std::string>& files,
                                        int64_t length);

// The first of a reader's rows that can be read; nullopt if none of its first
// rows can, or the reader, which is loaded, doesn't show rows (rows.h). `kind`
// is what the reading before took the rows for, and becomes what this one does:
// as a prompt any conversation can be read, so only rows of no other kind are.
absl::optional<DataRow> FirstGoodRow(const google::protobuf::Any& reader,
                                     std::string* kind);

}  // namespace capstan

#endif  // CAPSTAN_DESK_DATA_FILES_H_
