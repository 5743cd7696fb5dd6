// SPDX-License-Identifier: Apache-2.0
#include "base/hidden_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

absl::Status PathError(const std::string& path) {
  const std::string message =
      absl::StrCat(path, " can't be written: ", std::strerror(errno));
  return errno == ENOSPC ? absl::ResourceExhaustedError(message)
                         : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HiddenFile>> HiddenFile::Create(
    const std::string& path) {
  const std::filesystem::path p(path);
  std::string hidden =
      (p.parent_path() / absl::StrCat(".", p.filename().string(), ".new"))
          .string();
  const int fd =
      open(hidden.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return PathError(hidden);
  return std::unique_ptr<HiddenFile>(
      new HiddenFile(path, std::move(hidden), fd));
}

HiddenFile::HiddenFile(const std::string& path, std::string hidden, int fd)
    : path_(path), hidden_(std::move(hidden)), fd_(fd) {}

HiddenFile::~HiddenFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(hidden_.c_str());
}

absl::Status HiddenFile::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PathError(hidden_);
    bytes.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status HiddenFile::Rewind() {
  return lseek(fd_, 0, SEEK_SET) == 0 ? absl::OkStatus() : PathError(hidden_);
}

absl::Status HiddenFile::Close() {
  if (fsync(fd_) != 0) return PathError(hidden_);
  if (std::rename(hidden_.c_str(), path_.c_str()) != 0) return PathError(path_);
  close(fd_);
  fd_ = -1;
  return absl::OkStatus();
}

}  // namespace capstan
