// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/unpack.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan::chat {
namespace {

constexpr absl::string_view kGzip("\x1f\x8b", 2);
constexpr absl::string_view kZstd("\x28\xb5\x2f\xfd", 4);

constexpr size_t kBuffer = 1 << 20;

absl::Status Broken(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, " can't be unpacked: ", why));
}

absl::Status Empty(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
}

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)), left_(file_->bytes()) {}

  absl::StatusOr<size_t> Read(char* out, size_t most) override {
    const size_t size = left_.copy(out, most);
    left_.remove_prefix(size);
    CAPSTAN_RETURN_IF_ERROR(file_->Check());
    return size;
  }

 private:
  const std::shared_ptr<const MappedFile> file_;
  absl::string_view left_;
};

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(const std::string& path)
      : path_(path), in_(gzopen(path.c_str(), "rb"), gzclose) {
    if (in_ != nullptr) gzbuffer(in_.get(), kBuffer);
  }

  absl::StatusOr<size_t> Read(char* out, size_t most) override {
    if (in_ == nullptr) return Broken(path_, "it can't be opened");
    const auto wanted = static_cast<unsigned>(std::min(most, kBuffer));
    const int size = gzread(in_.get(), out, wanted);
    int error = Z_OK;
    const char* const message = gzerror(in_.get(), &error);
    // For a truncated file, gzread returns the data before the end, and an
    // error.
    if (size < 0 || error != Z_OK) {
      return Broken(path_,
                    error == Z_BUF_ERROR ? "its end is missing" : message);
    }
    if (size == 0 && !any_) return Empty(path_);
    any_ = true;
    return static_cast<size_t>(size);
  }

 private:
  const std::string path_;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in_;
  bool any_ = false;
};

class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)),
        context_(ZSTD_createDCtx(), ZSTD_freeDCtx),
        input_{file_->bytes().data(), file_->bytes().size(), 0} {}

  absl::StatusOr<size_t> Read(char* out, size_t most) override {
    ZSTD_outBuffer output = {out, most, 0};
    while (output.pos == 0 && (input_.pos < input_.size || full_)) {
      left_ = ZSTD_decompressStream(context_.get(), &output, &input_);
      if (ZSTD_isError(left_)) {
        return Broken(file_->path(), ZSTD_getErrorName(left_));
      }
      full_ = output.pos == output.size && left_ != 0;
    }
    any_ = any_ || output.pos > 0;
    if (output.pos > 0) return output.pos;
    CAPSTAN_RETURN_IF_ERROR(file_->Check());
    if (left_ != 0) return Broken(file_->path(), "its end is missing");
    if (!any_) return Empty(file_->path());
    return size_t{0};
  }

 private:
  const std::shared_ptr<const MappedFile> file_;
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  ZSTD_inBuffer input_;
  size_t left_ = 0;  // 0: at the end of a frame
  bool full_ = false;
  bool any_ = false;
};

}  // namespace

Packed PackedAs(absl::string_view bytes) {
  if (absl::StartsWith(bytes, kGzip)) return Packed::kGzip;
  return absl::StartsWith(bytes, kZstd) ? Packed::kZstd : Packed::kNot;
}

absl::StatusOr<std::unique_ptr<ByteStream>> OpenBytes(const std::string& path,
                                                      Packed packed) {
  if (packed == Packed::kGzip) {
    return std::unique_ptr<ByteStream>(std::make_unique<GzipStream>(path));
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file,
                           MappedFile::Open(path));
  if (packed == Packed::kZstd) {
    return std::unique_ptr<ByteStream>(
        std::make_unique<ZstdStream>(std::move(file)));
  }
  return std::unique_ptr<ByteStream>(
      std::make_unique<PlainStream>(std::move(file)));
}

uint64_t MostUnpacked(uint64_t packed) {
  constexpr uint64_t kTimes = 200;
  constexpr uint64_t kAlways = uint64_t{1} << 30;
  return std::max(kAlways, kTimes * packed);
}

absl::Status TooLarge(const std::string& path, uint64_t most) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, " can't be unpacked: it becomes more than ", most,
      " bytes, the limit for a file of its size; unpack it yourself, and "
      "name the unpacked file, if that is meant"));
}

}  // namespace capstan::chat
