// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "datasets/common/npy.h"
#include "glog/logging.h"
#include "plugins/sdk/status.h"

namespace capstan {
namespace {

absl::Status PathError(const std::string& path) {
  const std::string message =
      absl::StrCat(path, " can't be written: ", std::strerror(errno));
  return errno == ENOSPC ? absl::ResourceExhaustedError(message)
                         : absl::UnavailableError(message);
}

std::string Hidden(const std::string& path) {
  const std::filesystem::path p(path);
  return (p.parent_path() / absl::StrCat(".", p.filename().string(), ".new"))
      .string();
}

// As numpy writes it: the smallest version that holds the text, padded so that
// the elements begin at a multiple of 64 bytes.
std::string HeaderBytes(NpyType type, const std::vector<int64_t>& shape) {
  std::string text = absl::StrCat("{'descr': '", NpyTypeDescr(type),
                                  "', 'fortran_order': False, 'shape': ", "(",
                                  absl::StrJoin(shape, ", "),
                                  shape.size() == 1 ? ",), }" : "), }");
  // Of magic, version, length, text and newline.
  const auto padded = [&text](size_t length_bytes) {
    return (8 + length_bytes + text.size() + 1 + 63) / 64 * 64;
  };
  const size_t length_bytes = padded(2) - 10 <= 0xffff ? 2 : 4;
  const size_t text_bytes = padded(length_bytes) - 8 - length_bytes;
  text.resize(text_bytes - 1, ' ');
  std::string header = "\x93NUMPY";
  header += length_bytes == 2 ? '\x01' : '\x02';
  header += '\0';
  for (size_t i = 0; i < length_bytes; ++i) {
    header += static_cast<char>((text_bytes >> (8 * i)) & 0xff);
  }
  return header + text + "\n";
}

}  // namespace

NpyWriter::NpyWriter(std::string path, NpyType type, int64_t elements, int fd)
    : path_(std::move(path)),
      hidden_(Hidden(path_)),
      type_(type),
      elements_(elements),
      fd_(fd) {}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(
    const std::string& path, NpyType type, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) {
    CHECK_GE(size, 0) << path;
    elements *= size;
  }
  const std::string hidden = Hidden(path);
  const int fd =
      open(hidden.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return PathError(hidden);
  std::unique_ptr<NpyWriter> writer(new NpyWriter(path, type, elements, fd));
  CAPSTAN_RETURN_IF_ERROR(writer->Write(HeaderBytes(type, shape)));
  return writer;
}

NpyWriter::~NpyWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(hidden_.c_str());
}

absl::Status NpyWriter::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PathError(hidden_);
    bytes.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status NpyWriter::AppendBytes(NpyType type, absl::string_view bytes) {
  CHECK(type == type_) << path_;
  written_ += static_cast<int64_t>(bytes.size());
  return Write(bytes);
}

absl::Status NpyWriter::Close() {
  if (written_ != elements_ * NpyTypeBytes(type_)) {
    return absl::InternalError(
        absl::StrCat(path_, ": its shape has ", elements_, " elements, but ",
                     written_ / NpyTypeBytes(type_), " were written"));
  }
  if (fsync(fd_) != 0) return PathError(hidden_);
  if (std::rename(hidden_.c_str(), path_.c_str()) != 0) return PathError(path_);
  close(fd_);
  fd_ = -1;
  return absl::OkStatus();
}

}  // namespace capstan
