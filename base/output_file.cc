// SPDX-License-Identifier: Apache-2.0
#include "base/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace {

absl::Status WriteError(const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat(path, " can't be written"));
}

bool IsUpTo(absl::string_view line, int64_t last) {
  const nlohmann::json object =
      nlohmann::json::parse(line.begin(), line.end(), /*cb=*/nullptr,
                            /*allow_exceptions=*/false);
  if (!object.is_object()) return false;
  const auto step = object.find("step");
  return step != object.end() && step->is_number_integer() &&
         step->get<int64_t>() <= last;
}

}  // namespace

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path,
                                            Start start) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC |
                    (start == Start::kEmpty ? O_TRUNC : 0);
  const int fd = open(path.c_str(), flags, 0666);
  if (fd < 0) return WriteError(path, errno);
  return OutputFile(path, fd);
}

OutputFile::OutputFile(OutputFile&& other)
    : path_(other.path_), fd_(other.fd_) {
  other.fd_ = -1;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status OutputFile::Append(absl::string_view bytes) {
  while (status_.ok() && !bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      status_ = WriteError(path_, errno);
    } else {
      bytes.remove_prefix(n);
    }
  }
  return status_;
}

absl::Status OutputFile::Sync() {
  if (status_.ok() && fsync(fd_) != 0) status_ = WriteError(path_, errno);
  return status_;
}

absl::Status KeepLinesUpTo(int64_t step, const std::string& path) {
  if (!PathExists(path)) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::string kept;
  absl::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (end == absl::string_view::npos) break;  // cut short
    if (IsUpTo(rest.substr(0, end), step)) {
      kept.append(rest.data(), end + 1);
    }
    rest.remove_prefix(end + 1);
  }
  if (kept.size() == text.size()) return absl::OkStatus();
  return ReplaceFile(path, kept);
}

absl::Status ReplaceFile(const std::string& path, absl::string_view bytes) {
  const std::string beside = absl::StrCat(path, ".tmp");
  {
    CAPSTAN_ASSIGN_OR_RETURN(
        OutputFile file, OutputFile::Open(beside, OutputFile::Start::kEmpty));
    absl::Status written = file.Append(bytes);
    if (written.ok()) written = file.Sync();
    if (!written.ok()) {
      unlink(beside.c_str());
      return written;
    }
  }
  if (rename(beside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(beside.c_str());
    return WriteError(path, error);
  }
  return absl::OkStatus();
}

}  // namespace capstan
