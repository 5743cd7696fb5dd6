// SPDX-License-Identifier: Apache-2.0
#include "base/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/files.h"
#include "base/status.h"

namespace capstan {

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
      status_(std::move(other.status_)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status OutputFile::Append(absl::string_view bytes) {
  if (status_.ok()) status_ = WriteAll(fd_, bytes, path_);
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

absl::StatusOr<std::unique_ptr<HiddenFile>> HiddenFile::Create(
    const std::string& path, absl::string_view suffix) {
  std::string hidden = HiddenSibling(path, suffix);
  const int fd =
      open(hidden.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return WriteError(path, errno);
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
