// SPDX-License-Identifier: Apache-2.0
//
// A file of the output folder. Errors read "PATH can't be written: No space
// left on device".
#ifndef CAPSTAN_BASE_OUTPUT_FILE_H_
#define CAPSTAN_BASE_OUTPUT_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// A file that grows; what is appended is handed to the operating system at
// once, so that it outlives the process. One thread.
class OutputFile {
 public:
  enum class Start { kEmpty, kAtEnd };
  static absl::StatusOr<OutputFile> Open(const std::string& path, Start start);

  OutputFile(OutputFile&& other);
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // After an error nothing more is written, so that a line cut short stays the
  // last one; every later call returns the first error.
  absl::Status Append(absl::string_view bytes);
  // Waits until the bytes are on the disk.
  absl::Status Sync();

 private:
  OutputFile(const std::string& path, int fd) : path_(path), fd_(fd) {}

  std::string path_;
  int fd_;
  absl::Status status_;
};

// For a file of JSON objects, one a line, each with a "step": keeps those of
// steps up to `step`, and drops the rest along with a last line cut short by a
// crash. Fine if there is no such file.
absl::Status KeepLinesUpTo(int64_t step, const std::string& path);

// Written beside (PATH.tmp) and renamed: a reader sees the old or the new.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_BASE_OUTPUT_FILE_H_
