// SPDX-License-Identifier: Apache-2.0
//
// Whole files, mapped files, folders that appear at once or not at all, and
// the one wording for what the operating system says of a path.
#ifndef CAPSTAN_BASE_FILES_H_
#define CAPSTAN_BASE_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// The errno value `error` as a status with errno's code: "PATH: No such file or
// directory". A full disk is RESOURCE_EXHAUSTED.
absl::Status FileError(const std::string& path, int error);
// "PATH can't be written: No space left on device".
absl::Status WriteError(const std::string& path, int error);

bool PathExists(const std::string& path);

// Makes parents too. OK if it exists.
absl::Status MakeFolder(const std::string& path);
// OK if it doesn't exist.
absl::Status RemoveTree(const std::string& path);

absl::StatusOr<std::string> ReadWholeFile(const std::string& path);
// Creates or overwrites it, and flushes it to disk. A reader may see half of
// it; ReplaceFile (base/output_file.h) lands whole.
absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes);

// Writes all of `bytes` to the descriptor `fd`; `path` is for the error.
absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path);

// Flushes a file, or a folder's entries, to disk.
absl::Status SyncPath(const std::string& path);
// Flushes a folder's entries and each file in it.
absl::Status SyncFolderAndFiles(const std::string& path);

// A hidden name beside `path`, for what isn't complete: PARENT/.NAME.suffix.
std::string HiddenSibling(const std::string& path, absl::string_view suffix);

// Renames the folder `from` to `to` beside it. An older `to` is replaced and
// removed: at every moment either lies under `to`, or, on file systems that
// can't swap two names at once, for an instant the older under
// HiddenSibling(to, "old").
absl::Status ReplaceFolder(const std::string& from, const std::string& to);

// A file that is read at offsets. Thread-safe.
class InputFile {
 public:
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Its length now, in bytes.
  absl::StatusOr<int64_t> Bytes() const;
  // Exactly `bytes` bytes from byte `offset`; DATA_LOSS if it ends before.
  absl::Status ReadAt(int64_t offset, int64_t bytes, char* out) const;

 private:
  InputFile(std::string path, int fd);
  const std::string path_;
  const int fd_;
};

struct MapOptions {
  bool in_order = false;  // has the kernel read far ahead of what is touched
  bool may_be_empty = false;
};

// A file in memory, read-only, for as long as the object lives. Pages come from
// the file as they are touched and go when memory is short.
class MappedFile {
 public:
  // Errors name the file: missing, a folder, empty, not readable.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(
      const std::string& path, const MapOptions& options = {});
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::string_view bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, absl::string_view bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  const std::string path_;
  const absl::string_view bytes_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_FILES_H_
