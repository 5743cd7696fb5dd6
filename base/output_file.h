// SPDX-License-Identifier: Apache-2.0
//
// Files that are written piece by piece. Errors read "PATH can't be written: No
// space left on device". Each object belongs to one thread at a time.
#ifndef CAPSTAN_BASE_OUTPUT_FILE_H_
#define CAPSTAN_BASE_OUTPUT_FILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// A file that grows; what is appended is handed to the operating system at
// once, so that it outlives the process.
class OutputFile {
 public:
  // kNew: there must be no such file.
  enum class Start { kNew, kEmpty, kAtEnd };
  static absl::StatusOr<OutputFile> Open(const std::string& path, Start start);

  OutputFile(OutputFile&& other);
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // After an error nothing more is written, so that a line cut short stays the
  // last one; every later call returns the first error.
  absl::Status Append(absl::string_view bytes);
  // Waits until the bytes are on the disk.
  absl::Status Sync();
  // Sync, and closes it: some file systems report a full disk only here.
  absl::Status Close();

 private:
  OutputFile(const std::string& path, int fd) : path_(path), fd_(fd) {}

  std::string path_;
  int fd_;
  absl::Status status_;
};

// A file that appears under its name, whole and on the disk, when Close has
// returned OK. Before that it is HiddenSibling(path, suffix), which goes with
// this. Two writers of the same path at once need suffixes of their own.
class HiddenFile {
 public:
  static absl::StatusOr<std::unique_ptr<HiddenFile>> Create(
      const std::string& path, absl::string_view suffix = "new");
  ~HiddenFile();
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  absl::Status Write(absl::string_view bytes);
  // The next bytes replace the file's first ones.
  absl::Status Rewind();
  // Once, after all bytes.
  absl::Status Close();

  const std::string& path() const { return path_; }

 private:
  HiddenFile(const std::string& path, std::string hidden, int fd);

  const std::string path_;
  const std::string hidden_;
  int fd_;  // -1: closed
};

// Writes the whole file as a HiddenFile: a reader sees the old or the new one.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_BASE_OUTPUT_FILE_H_
