// SPDX-License-Identifier: Apache-2.0
//
// Files written incrementally. Errors read "PATH can't be written: No space
// left on device". Each object is used by one thread at a time.
#ifndef CAPSTAN_BASE_OUTPUT_FILE_H_
#define CAPSTAN_BASE_OUTPUT_FILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// An append-only file. Appended bytes go to the operating system at once, so
// they survive a crash of the process.
class OutputFile {
 public:
  // kNew: the file must not exist.
  enum class Start { kNew, kEmpty, kAtEnd };
  static absl::StatusOr<OutputFile> Open(const std::string& path, Start start);

  OutputFile(OutputFile&& other);
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // After an error nothing more is written, so that a truncated line stays the
  // last; later calls return the first error.
  absl::Status Append(absl::string_view bytes);
  // Blocks until the bytes are on disk.
  absl::Status Sync();
  // Syncs and closes; some file systems report a full disk only here.
  absl::Status Close();

 private:
  OutputFile(const std::string& path, int fd) : path_(path), fd_(fd) {}

  std::string path_;
  int fd_;
  absl::Status status_;
};

// A file that appears when Close returns OK, complete and with its bytes on
// disk (its name once the folder is synced, too: SyncPath). Until then
// it is HiddenSibling(path, suffix), which the destructor removes. Concurrent
// writers of the same path need different suffixes.
class HiddenFile {
 public:
  static absl::StatusOr<std::unique_ptr<HiddenFile>> Create(
      const std::string& path, absl::string_view suffix = "new");
  ~HiddenFile();
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  absl::Status Write(absl::string_view bytes);
  // Subsequent bytes overwrite the file from its start.
  absl::Status Rewind();
  // Call once, after all bytes.
  absl::Status Close();

  const std::string& path() const { return path_; }

 private:
  HiddenFile(const std::string& path, std::string hidden, int fd);

  const std::string path_;
  const std::string hidden_;
  int fd_;  // -1: closed
};

// Writes the file through a HiddenFile: readers see the old or the new
// contents.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_BASE_OUTPUT_FILE_H_
