// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = 4 << 20;

absl::Status PathError(const std::string& path, int error) {
  if (error == ENOSPC) {
    return absl::ResourceExhaustedError(path + ": no space left on device");
  }
  return absl::ErrnoToStatus(error, path);
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Calls sink(piece) with the file's bytes, piece by piece.
template <typename Sink>
absl::Status ReadPieces(const std::string& path, const Sink& sink) {
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0) return PathError(path, errno);
  std::vector<char> buffer(kReadBytes);
  while (true) {
    const ssize_t n = read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PathError(path, errno);
    if (n == 0) return absl::OkStatus();
    sink(absl::string_view(buffer.data(), n));
  }
}

absl::Status SyncPath(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0) return PathError(path, errno);
  // Some network file systems can't sync a folder.
  if (fsync(file.get()) != 0 && errno != EINVAL) return PathError(path, errno);
  return absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return PathError(to, errno);
  return absl::OkStatus();
}

}  // namespace

bool PathExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return PathError(path, error.value());
  return absl::OkStatus();
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return PathError(path, error.value());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  std::string bytes;
  CAPSTAN_RETURN_IF_ERROR(ReadPieces(path, [&bytes](absl::string_view piece) {
    bytes.append(piece.data(), piece.size());
  }));
  return bytes;
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.get() < 0) return PathError(path, errno);
  while (!bytes.empty()) {
    const ssize_t n = write(file.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PathError(path, errno);
    bytes.remove_prefix(n);
  }
  if (fsync(file.get()) != 0) return PathError(path, errno);
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path, bool files) {
  if (files) {
    std::error_code error;
    for (fs::directory_iterator it(path, error), end; !error && it != end;
         it.increment(error)) {
      if (it->is_regular_file(error)) {
        CAPSTAN_RETURN_IF_ERROR(SyncPath(it->path().string()));
      }
    }
    if (error) return PathError(path, error.value());
  }
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
    return SyncFolder(parent.empty() ? "." : parent, /*files=*/false);
  };
  if (!PathExists(to)) {
    CAPSTAN_RETURN_IF_ERROR(Rename(from, to));
    return sync_parent();
  }
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                RENAME_EXCHANGE) == 0) {
    CAPSTAN_RETURN_IF_ERROR(sync_parent());
    return RemoveTree(from);  // the older one now
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
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return PathError(path, errno);
  return std::unique_ptr<InputFile>(new InputFile(path, fd));
}

absl::StatusOr<int64_t> InputFile::Bytes() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return PathError(path_, errno);
  return info.st_size;
}

absl::Status InputFile::ReadAt(int64_t offset, int64_t bytes, char* out) const {
  while (bytes > 0) {
    const ssize_t n = pread(fd_, out, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PathError(path_, errno);
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

}  // namespace capstan
