// SPDX-License-Identifier: Apache-2.0
//
// Reading, mapping and writing files, replacing folders atomically, and one
// wording for the operating system's errors.
#ifndef CAPSTAN_BASE_FILES_H_
#define CAPSTAN_BASE_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct stat;

namespace capstan {

// `error` (an errno value) as a status with the matching code: "PATH can't be
// written: No space left on device". A full disk is RESOURCE_EXHAUSTED.
absl::Status WriteError(const std::string& path, int error);

// The errno value that a function of this header failed with, also after
// Annotate; 0 if `status` is OK or no error of the operating system's.
int ErrnoOf(const absl::Status& status);

// False if it can't be asked, either: a name too long, a folder that may not be
// searched.
bool PathExists(const std::string& path);
bool IsFolder(const std::string& path);
bool IsRegularFile(const std::string& path);

// Creates parents as needed. OK if it exists.
absl::Status MakeFolder(const std::string& path);
// OK if it doesn't exist.
absl::Status RemoveTree(const std::string& path);

// A file with more than `most_bytes` is an error.
constexpr int64_t kMostWholeFileBytes = int64_t{1} << 30;
absl::StatusOr<std::string> ReadWholeFile(
    const std::string& path, int64_t most_bytes = kMostWholeFileBytes);
// Creates or overwrites the file and flushes it to disk. Not atomic, unlike
// ReplaceFile.
absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes);

// Writes all of `bytes` to the descriptor `fd`; errors name `path`.
absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path);

// Flushes a file, or a folder's entries, to disk.
absl::Status SyncPath(const std::string& path);
// Flushes a folder's entries and each file in it.
absl::Status SyncFolderAndFiles(const std::string& path);

// A hidden sibling of `path` for incomplete output: PARENT/.NAME.suffix.
std::string HiddenSibling(const std::string& path, absl::string_view suffix);

// Renames the folder `from` to its sibling `to`, replacing an existing one.
// `to` exists throughout; without an atomic exchange by the file system, the
// old folder is briefly at HiddenSibling(to, "old").
absl::Status ReplaceFolder(const std::string& from, const std::string& to);

// A file read at offsets. Thread-safe.
class InputFile {
 public:
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Current length in bytes.
  absl::StatusOr<int64_t> Bytes() const;
  // Reads exactly `bytes` bytes at `offset`; DATA_LOSS if the file is shorter.
  absl::Status ReadAt(int64_t offset, int64_t bytes, char* out) const;

 private:
  InputFile(std::string path, int fd);
  const std::string path_;
  const int fd_;
};

struct MapOptions {
  bool in_order = false;  // tells the kernel to read far ahead
  bool may_be_empty = false;
};

// A read-only memory mapping, unmapped by the destructor. If the file becomes
// shorter meanwhile, or its disk fails, what is gone reads as zeros instead of
// ending the process (SIGBUS), and Check says so. Until then the bytes may
// change under a reader: what must not change between two looks at it (a text
// to parse, a number to check and use) is copied first.
class MappedFile {
 public:
  // Errors name the file: missing, a folder, a pipe, empty or unreadable.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(
      const std::string& path, const MapOptions& options = {});
  // Maps an open file, which can be closed then; `path` is for errors.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(
      int fd, const std::string& path, const MapOptions& options = {});
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::string_view bytes() const { return bytes_; }

  // Tells the kernel that the bytes will be read again and again: what isn't in
  // memory is read in the background, and `in_order` no longer has pages freed
  // soon after they were read.
  void ExpectRepeatedReads() const;

  // To be called after reading: DATA_LOSS, with the file's name, if what was
  // read may have been zeros of ours. One stat.
  absl::Status Check() const;
  // The same of all mapped files, without the stat: one load if none lost
  // anything.
  static absl::Status CheckAll();

  struct Watch;

 private:
  static absl::StatusOr<std::shared_ptr<const MappedFile>> OfDescriptor(
      int fd, const struct stat& info, const std::string& path,
      const MapOptions& options);
  MappedFile(std::string path, absl::string_view bytes, uint64_t device,
             uint64_t inode);

  const std::string path_;
  const absl::string_view bytes_;
  // Of the file, as stat says.
  const uint64_t device_;
  const uint64_t inode_;
  Watch* const watch_;  // null: empty
};

// Tells the kernel that this process won't soon read these bytes of a mapped
// file: pages that are whole within them no longer count as its memory, and
// come back from the page cache when they are read.
void ForgetMapped(const void* data, size_t bytes);

// An append-only file. Bytes go to the operating system at once, so they
// survive a crash of the process.
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
  int64_t unsent_ = 0;  // bytes since the kernel was told to write them
  absl::Status status_;
};

// A file that appears when Close returns OK, complete and with its bytes on
// disk (its name once the folder is synced: SyncPath). Until then it is
// HiddenSibling(path, suffix), which the destructor removes; writers of one
// path at the same time each have a file of their own (".2", ".3", .. behind
// its name), and the last to close wins. What a killed writer has left is used
// or removed by the next. Where the file system has no flock, writers at the
// same time need different suffixes.
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

// Atomic, through a HiddenFile: readers see the old or the new contents.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_BASE_FILES_H_
