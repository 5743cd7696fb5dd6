// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_SOURCE_ROWS_H_
#define CAPSTAN_DATASETS_CHAT_SOURCE_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "datasets/chat/row_index.h"
#include "datasets/chat/source_file.h"

namespace capstan::chat {

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

#endif  // CAPSTAN_DATASETS_CHAT_SOURCE_ROWS_H_
