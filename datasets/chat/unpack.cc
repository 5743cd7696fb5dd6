// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/unpack.h"

#include <zlib.h>
#include <zstd.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace chat {
namespace {

constexpr size_t kBuffer = 1 << 20;

absl::Status Broken(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, " can't be unpacked: ", why));
}

absl::Status Empty(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
}

}  // namespace

absl::Status UnpackGzip(const std::string& from, HiddenFile* to) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(
      gzopen(from.c_str(), "rb"), gzclose);
  if (in == nullptr) return Broken(from, "it can't be opened");
  gzbuffer(in.get(), kBuffer);
  std::vector<char> buffer(kBuffer);
  bool any = false;
  while (true) {
    const int size = gzread(in.get(), buffer.data(), kBuffer);
    int error = Z_OK;
    const char* const message = gzerror(in.get(), &error);
    // At a file that is cut off, gzread gives what is there, and an error.
    if (size < 0 || error != Z_OK) {
      return Broken(from,
                    error == Z_BUF_ERROR ? "its end is missing" : message);
    }
    if (size == 0) return any ? absl::OkStatus() : Empty(from);
    any = true;
    CAPSTAN_RETURN_IF_ERROR(
        to->Write(absl::string_view(buffer.data(), static_cast<size_t>(size))));
  }
}

absl::Status UnpackZstd(const std::string& from, HiddenFile* to) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file,
                           MappedFile::Open(from));
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(
      ZSTD_createDCtx(), ZSTD_freeDCtx);
  std::vector<char> buffer(kBuffer);
  ZSTD_inBuffer input = {file->bytes().data(), file->bytes().size(), 0};
  size_t left = 0;  // 0: at the end of a frame
  bool full = false;
  bool any = false;
  while (input.pos < input.size || full) {
    ZSTD_outBuffer output = {buffer.data(), buffer.size(), 0};
    left = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(left)) return Broken(from, ZSTD_getErrorName(left));
    any = any || output.pos > 0;
    CAPSTAN_RETURN_IF_ERROR(
        to->Write(absl::string_view(buffer.data(), output.pos)));
    full = output.pos == output.size && left != 0;
  }
  if (left != 0) return Broken(from, "its end is missing");
  return any ? absl::OkStatus() : Empty(from);
}

}  // namespace chat
}  // namespace capstan
