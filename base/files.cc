// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/limits.h"
#include "base/open_to_read.h"
#include "base/progress.h"
#include "base/same_file.h"
#include "base/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// Of a large file, after how many bytes the disk begins to write: all at once
// at the end would have it wait while memory is filled, and us for it then.
constexpr int64_t kSendBytes = int64_t{32} << 20;

constexpr char kErrnoPayload[] = "capstan/errno";

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const std::string& path, int flags)
      : Descriptor(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// "PATH: No such file or directory", with the code that `error` (an errno
// value) matches, but for those that say something else of a run: that a rank
// is lost, or that the user stopped it.
absl::Status FileError(const std::string& path, int error) {
  const absl::Status status = absl::ErrnoToStatus(error, path);
  const bool other = absl::IsUnavailable(status) || absl::IsCancelled(status);
  absl::Status worded(other ? absl::StatusCode::kUnknown : status.code(),
                      absl::StrCat(status.message(), LimitText(error)));
  worded.SetPayload(kErrnoPayload, absl::Cord(absl::StrCat(error)));
  return worded;
}

absl::Status FileError(const std::string& path, std::error_code error) {
  return error ? FileError(path, error.value()) : absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return FileError(to, errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> OpenToRead(const std::string& path,
                               absl::string_view failed, struct stat* info) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const auto error = [&]() -> absl::Status {
    const int number = errno;
    if (fd >= 0) close(fd);
    return FileError(absl::StrCat(path, failed), number);
  };
  if (fd < 0 || fstat(fd, info) != 0) return error();
  if (S_ISREG(info->st_mode) || S_ISDIR(info->st_mode)) return fd;
  // Only a pipe without a name is in the kernel's own file system.
  constexpr int64_t kPipeFs = 0x50495045;  // PIPEFS_MAGIC of linux/magic.h
  struct statfs system;
  if (fstatfs(fd, &system) != 0) return error();
  if (S_ISFIFO(info->st_mode) &&
      static_cast<int64_t>(system.f_type) != kPipeFs) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a named pipe, not a file"));
  }
  if (fcntl(fd, F_SETFL, 0) != 0) return error();  // reads wait
  return fd;
}

absl::Status WriteError(const std::string& path, int error) {
  return FileError(absl::StrCat(path, " can't be written"), error);
}

int ErrnoOf(const absl::Status& status) {
  const absl::optional<absl::Cord> text = status.GetPayload(kErrnoPayload);
  int error = 0;
  return text.has_value() && absl::SimpleAtoi(std::string(*text), &error)
             ? error
             : 0;
}

bool PathExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

bool IsFolder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool IsRegularFile(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return FileError(path, error);
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return FileError(path, error);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path,
                                          int64_t most_bytes) {
  struct stat info;
  CAPSTAN_ASSIGN_OR_RETURN(const int fd, OpenToRead(path, "", &info));
  const Descriptor file(fd);
  const auto too_large = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is too large: it has more than the ", most_bytes,
                     " bytes that such a file may have"));
  };
  if (info.st_size > most_bytes) return too_large();
  // Files in /proc report size 0; others may be growing.
  constexpr size_t kMore = 64 << 10;
  std::string bytes(static_cast<size_t>(info.st_size) + kMore, '\0');
  size_t size = 0;
  while (true) {
    const ssize_t n = read(file.get(), &bytes[size], bytes.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path, errno);
    size += static_cast<size_t>(n);
    if (static_cast<int64_t>(size) > most_bytes) return too_large();
    if (n == 0) break;
    if (size == bytes.size()) bytes.resize(2 * size);
  }
  bytes.resize(size);
  return bytes;
}

absl::Status WriteAll(int fd, absl::string_view bytes,
                      const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WriteError(path, errno);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.get() < 0) return WriteError(path, errno);
  CAPSTAN_RETURN_IF_ERROR(WriteAll(file.get(), bytes, path));
  if (fsync(file.get()) != 0) return WriteError(path, errno);
  return absl::OkStatus();
}

absl::Status SyncPath(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0) return FileError(path, errno);
  // Some network file systems can't sync a folder.
  if (fsync(file.get()) != 0 && errno != EINVAL) return WriteError(path, errno);
  return absl::OkStatus();
}

absl::Status SyncFolderAndFiles(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file(error)) {
      CAPSTAN_RETURN_IF_ERROR(SyncPath(it->path().string()));
    }
  }
  CAPSTAN_RETURN_IF_ERROR(FileError(path, error));
  return SyncPath(path);
}

std::string HiddenSibling(const std::string& path, absl::string_view suffix) {
  const fs::path p(path);
  return (p.parent_path() /
          absl::StrCat(".", p.filename().string(), ".", suffix))
      .string();
}

absl::Status ReplaceFolder(const std::string& from, const std::string& to) {
  const std::string parent = fs::path(to).parent_path().string();
  const auto sync_parent = [&parent] {
    return SyncPath(parent.empty() ? "." : parent);
  };
  if (!PathExists(to)) {
    CAPSTAN_RETURN_IF_ERROR(Rename(from, to));
    return sync_parent();
  }
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                RENAME_EXCHANGE) == 0) {
    CAPSTAN_RETURN_IF_ERROR(sync_parent());
    return RemoveTree(from);  // `from` is now the older one
  }
  const std::string old = HiddenSibling(to, "old");
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(old));
  CAPSTAN_RETURN_IF_ERROR(Rename(to, old));
  const absl::Status renamed = Rename(from, to);
  if (!renamed.ok()) {
    Rename(old, to).IgnoreError();
    return renamed;
  }
  CAPSTAN_RETURN_IF_ERROR(sync_parent());
  return RemoveTree(old);
}

InputFile::InputFile(std::string path, int fd)
    : path_(std::move(path)), fd_(fd) {}

InputFile::~InputFile() { close(fd_); }

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(
    const std::string& path) {
  struct stat info;
  CAPSTAN_ASSIGN_OR_RETURN(const int fd, OpenToRead(path, "", &info));
  return std::unique_ptr<InputFile>(new InputFile(path, fd));
}

absl::StatusOr<int64_t> InputFile::Bytes() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return FileError(path_, errno);
  return info.st_size;
}

absl::Status InputFile::ReadAt(int64_t offset, int64_t bytes, char* out) const {
  while (bytes > 0) {
    const ssize_t n = pread(fd_, out, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path_, errno);
    if (n == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, ": ends at byte ", offset));
    }
    offset += n;
    bytes -= n;
    out += n;
  }
  return absl::OkStatus();
}

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path,
                                            Start start) {
  const int how = start == Start::kNew     ? O_EXCL
                  : start == Start::kEmpty ? O_TRUNC
                                           : 0;
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | how, 0666);
  if (fd < 0) return WriteError(path, errno);
  return OutputFile(path, fd);
}

OutputFile::OutputFile(OutputFile&& other)
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      unsent_(other.unsent_),
      status_(std::move(other.status_)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status OutputFile::Append(absl::string_view bytes) {
  CountProgress();
  if (!status_.ok()) return status_;
  status_ = WriteAll(fd_, bytes, path_);
  unsent_ += static_cast<int64_t>(bytes.size());
  if (unsent_ >= kSendBytes) {
    unsent_ = 0;
    // Only starts it; Sync waits, and says what went wrong.
    sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
  }
  return status_;
}

absl::Status OutputFile::Sync() {
  if (status_.ok() && fsync(fd_) != 0) status_ = WriteError(path_, errno);
  return status_;
}

absl::Status OutputFile::Close() {
  CAPSTAN_RETURN_IF_ERROR(Sync());
  if (close(std::exchange(fd_, -1)) != 0) status_ = WriteError(path_, errno);
  return status_;
}

namespace {

// Takes the hidden file for this writer: creates it, or empties what a writer
// that is gone has left. -1: another writer has it.
absl::StatusOr<int> Claim(const std::string& hidden, const std::string& path) {
  while (true) {
    const int fd = open(hidden.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return WriteError(path, errno);
    // Some file systems have no locks: there, writers must differ by suffix.
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(fd);
      return -1;
    }
    struct stat opened = {};
    const bool same = LeadsTo(hidden, fd) && fstat(fd, &opened) == 0;
    // Otherwise its writer has just completed, or removed, it.
    if (same && (!S_ISREG(opened.st_mode) || ftruncate(fd, 0) == 0)) return fd;
    const int error = errno;
    close(fd);
    if (same) return WriteError(path, error);
  }
}

// Removes what a writer that is gone has left under this name.
void RemoveLeftOver(const std::string& hidden, const std::string& path) {
  if (!PathExists(hidden)) return;
  const absl::StatusOr<int> fd = Claim(hidden, path);
  if (!fd.ok() || *fd < 0) return;
  unlink(hidden.c_str());
  close(*fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HiddenFile>> HiddenFile::Create(
    const std::string& path, absl::string_view suffix) {
  const std::string first = HiddenSibling(path, suffix);
  for (int i = 1;; ++i) {
    std::string hidden = i == 1 ? first : absl::StrCat(first, ".", i);
    CAPSTAN_ASSIGN_OR_RETURN(const int fd, Claim(hidden, path));
    if (fd < 0) continue;
    RemoveLeftOver(absl::StrCat(first, ".", i + 1), path);
    return std::unique_ptr<HiddenFile>(
        new HiddenFile(path, std::move(hidden), fd));
  }
}

HiddenFile::HiddenFile(const std::string& path, std::string hidden, int fd)
    : path_(path), hidden_(std::move(hidden)), fd_(fd) {}

HiddenFile::~HiddenFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(hidden_.c_str());
}

absl::Status HiddenFile::Write(absl::string_view bytes) {
  return WriteAll(fd_, bytes, path_);
}

absl::Status HiddenFile::Rewind() {
  return lseek(fd_, 0, SEEK_SET) == 0 ? absl::OkStatus()
                                      : WriteError(path_, errno);
}

absl::Status HiddenFile::Close() {
  if (fsync(fd_) != 0 || rename(hidden_.c_str(), path_.c_str()) != 0) {
    return WriteError(path_, errno);
  }
  close(std::exchange(fd_, -1));
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, absl::string_view bytes) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HiddenFile> file,
                           HiddenFile::Create(path));
  CAPSTAN_RETURN_IF_ERROR(file->Write(bytes));
  return file->Close();
}

}  // namespace capstan
