// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/unpack.h"

#include <zlib.h>
#include <zstd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace chat {
namespace {

constexpr size_t kBuffer = 1 << 20;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

class Output {
 public:
  explicit Output(const std::string& path)
      : path_(path), file_(std::fopen(path.c_str(), "wb")) {}

  absl::Status Write(const char* data, size_t size) {
    size_ += size;
    if (file_ != nullptr && std::fwrite(data, 1, size, file_.get()) == size) {
      return absl::OkStatus();
    }
    return NotWritten();
  }
  // `from`: what was unpacked.
  absl::Status Finish(const std::string& from) {
    if (file_ == nullptr || std::fflush(file_.get()) != 0) return NotWritten();
    if (size_ > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(from, " is empty"));
  }

 private:
  absl::Status NotWritten() const {
    return absl::ResourceExhaustedError(
        absl::StrCat(path_, " can't be written: is the disk full?"));
  }

  const std::string path_;
  const std::unique_ptr<std::FILE, CloseFile> file_;
  size_t size_ = 0;
};

absl::Status Broken(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, " can't be unpacked: ", why));
}

}  // namespace

absl::Status UnpackGzip(const std::string& from, const std::string& to) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(
      gzopen(from.c_str(), "rb"), gzclose);
  if (in == nullptr) return Broken(from, "it can't be opened");
  gzbuffer(in.get(), kBuffer);
  Output out(to);
  std::vector<char> buffer(kBuffer);
  while (true) {
    const int size = gzread(in.get(), buffer.data(), kBuffer);
    int error = Z_OK;
    const char* const message = gzerror(in.get(), &error);
    // At a file that is cut off, gzread gives what is there, and an error.
    if (size < 0 || error != Z_OK) {
      return Broken(from,
                    error == Z_BUF_ERROR ? "its end is missing" : message);
    }
    if (size == 0) return out.Finish(from);
    CAPSTAN_RETURN_IF_ERROR(out.Write(buffer.data(), size));
  }
}

absl::Status UnpackZstd(const std::string& from, const std::string& to) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file,
                           MappedFile::Open(from));
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(
      ZSTD_createDCtx(), ZSTD_freeDCtx);
  Output out(to);
  std::vector<char> buffer(kBuffer);
  ZSTD_inBuffer input = {file->bytes().data(), file->bytes().size(), 0};
  size_t left = 0;  // 0: at the end of a frame
  bool full = false;
  while (input.pos < input.size || full) {
    ZSTD_outBuffer output = {buffer.data(), buffer.size(), 0};
    left = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(left)) return Broken(from, ZSTD_getErrorName(left));
    CAPSTAN_RETURN_IF_ERROR(out.Write(buffer.data(), output.pos));
    full = output.pos == output.size && left != 0;
  }
  if (left != 0) return Broken(from, "its end is missing");
  return out.Finish(from);
}

}  // namespace chat
}  // namespace capstan
