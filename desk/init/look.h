// SPDX-License-Identifier: Apache-2.0
//
// What `init` sees of data before any plugin reads it.
#ifndef CAPSTAN_DESK_INIT_LOOK_H_
#define CAPSTAN_DESK_INIT_LOOK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan::init {

enum class DataKind {
  kText,       // a UTF-8 text, or a folder of them
  kRows,       // rows that capstan.chat reads
  kPairs,      // such rows of a preferred and a rejected answer
  kLabels,     // such rows of an answer and whether it is desirable
  kHistories,  // learning histories, HDF5
  kModel,      // no data: a Hugging Face folder
};

// Whether capstan.dpo learns from them.
inline bool IsPreference(DataKind kind) {
  return kind == DataKind::kPairs || kind == DataKind::kLabels;
}

struct DataLook {
  DataKind kind = DataKind::kText;
  std::string path;                // absolute
  int64_t bytes = 0;               // of all files
  std::vector<std::string> files;  // in order of their names
  int64_t left_out = 0;            // files of a folder that are no data
  // Of the first row that can be read; empty if none can.
  std::string row_kind;            // as the reader calls it: "ALPACA"
  std::vector<std::string> roles;  // of its turns
  // kRows: rows are texts, or prompts and completions that are texts, which no
  // chat template writes.
  bool plain_texts = false;
  // Of texts: their label's JSON, which no objective learns; "" if none.
  std::string label;
  // The beginning of a text, or the first question asked; may be empty.
  std::string opening;
};

// What `init` names the file of a folder's texts; no text of the folder itself.
inline constexpr char kJoinedEnding[] = ".joined.txt";

// Looks at the beginning of the file or folder `path`, which is absolute; at
// rows by their reader, a plugin, also of `plugin_path`.
// NOT_FOUND or INVALID_ARGUMENT, naming the file and what to do: there is
// nothing, it is empty, or nothing that Capstan trains on.
absl::StatusOr<DataLook> LookAt(
    const std::string& path, const std::vector<std::string>& plugin_path = {});

// Whether a folder has a model: config.json and weights.
bool IsModelFolder(const std::string& path);

}  // namespace capstan::init

#endif  // CAPSTAN_DESK_INIT_LOOK_H_
