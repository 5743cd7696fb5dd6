// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "datasets/common/npy.h"
#include "glog/logging.h"

namespace capstan {
namespace {

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

NpyWriter::NpyWriter(std::unique_ptr<HiddenFile> file, NpyType type,
                     int64_t elements)
    : file_(std::move(file)), type_(type), elements_(elements) {}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(
    const std::string& path, NpyType type, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) {
    CHECK_GE(size, 0) << path;
    elements *= size;
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HiddenFile> file,
                           HiddenFile::Create(path));
  CAPSTAN_RETURN_IF_ERROR(file->Write(HeaderBytes(type, shape)));
  return std::unique_ptr<NpyWriter>(
      new NpyWriter(std::move(file), type, elements));
}

absl::Status NpyWriter::AppendBytes(NpyType type, absl::string_view bytes) {
  CHECK(type == type_) << file_->path();
  written_ += static_cast<int64_t>(bytes.size());
  return file_->Write(bytes);
}

absl::Status NpyWriter::Close() {
  if (written_ != elements_ * NpyTypeBytes(type_)) {
    return absl::InternalError(absl::StrCat(
        file_->path(), ": its shape has ", elements_, " elements, but ",
        written_ / NpyTypeBytes(type_), " were written"));
  }
  return file_->Close();
}

}  // namespace capstan
