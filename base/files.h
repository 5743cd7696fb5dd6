// SPDX-License-Identifier: Apache-2.0
//
// Files that survive a power cut, and folders that appear at once or not at
// all. Errors name the path.
#ifndef CAPSTAN_BASE_FILES_H_
#define CAPSTAN_BASE_FILES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

bool PathExists(const std::string& path);

// Parents too; fine if it is there.
absl::Status MakeFolder(const std::string& path);
// Fine if it isn't there.
absl::Status RemoveTree(const std::string& path);

absl::StatusOr<std::string> ReadWholeFile(const std::string& path);
// Creates or overwrites it, and flushes it to disk.
absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes);

// Flushes a folder's entries to disk; with `files`, also each file in it.
absl::Status SyncFolder(const std::string& path, bool files);

// The folder that hides beside `path` while something happens to it:
// PARENT/.NAME.suffix.
std::string HiddenSibling(const std::string& path, absl::string_view suffix);

// Renames the folder `from` to `to` beside it. An older `to` is replaced and
// removed: at every moment either lies under `to`, or, on file systems that
// can't swap two names at once, for an instant the older under
// HiddenSibling(to, "old").
absl::Status ReplaceFolder(const std::string& from, const std::string& to);

// A file that is read in places. Thread-safe.
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

}  // namespace capstan

#endif  // CAPSTAN_BASE_FILES_H_
