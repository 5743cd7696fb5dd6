// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/unpack.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
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

  uint64_t consumed() const override {
    return file_->bytes().size() - left_.size();
  }

 private:
  const std::shared_ptr<const MappedFile> file_;
  absl::string_view left_;
};

// Not gzread, which takes what follows a member for the end of the file unless
// it begins as a member does.
class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)), left_(file_->bytes()) {
    begun_ = inflateInit2(&stream_, kGzipOnly) == Z_OK;
  }
  ~GzipStream() override { inflateEnd(&stream_); }

  absl::StatusOr<size_t> Read(char* out, size_t most) override {
    if (!begun_) return Broken(file_->path(), "there is no memory for it");
    size_t size = 0;
    while (size == 0 && !(left_.empty() && at_start_)) {
      CAPSTAN_ASSIGN_OR_RETURN(size, Inflate(out, most));
    }
    CAPSTAN_RETURN_IF_ERROR(file_->Check());
    any_ = any_ || size > 0;
    if (!any_) return Empty(file_->path());
    return size;
  }

  uint64_t members() const override { return members_; }
  uint64_t consumed() const override {
    return file_->bytes().size() - left_.size();
  }

 private:
  // The format alone, with its largest window.
  static constexpr int kGzipOnly = 15 + 16;

  // Returns how many bytes it wrote; 0 also where a member begins or ends.
  absl::StatusOr<size_t> Inflate(char* out, size_t most) {
    const absl::string_view all = file_->bytes();
    if (at_start_ && !absl::StartsWith(left_, kGzip)) {
      return Broken(
          file_->path(),
          absl::StrCat("its last ", left_.size(), " bytes, from ",
                       all.size() - left_.size(), " on, behind ", members_,
                       members_ == 1 ? " gzip member" : " gzip members",
                       ", aren't another one: pack the file again"));
    }
    at_start_ = false;
    const size_t given = std::min(left_.size(), kBuffer);
    const size_t room = std::min(most, kBuffer);
    // zlib doesn't write to its input.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(left_.data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(room);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    left_.remove_prefix(given - stream_.avail_in);
    const size_t size = room - stream_.avail_out;
    if (code == Z_BUF_ERROR && left_.empty()) {
      return Broken(file_->path(), "its end is missing");
    }
    if (code != Z_OK && code != Z_STREAM_END) {
      return Broken(file_->path(),
                    stream_.msg == nullptr ? zError(code) : stream_.msg);
    }
    if (code == Z_STREAM_END) {
      ++members_;
      at_start_ = true;
      inflateReset(&stream_);
    }
    return size;
  }

  const std::shared_ptr<const MappedFile> file_;
  absl::string_view left_;
  z_stream stream_ = {};
  bool begun_ = false;
  bool at_start_ = true;  // of a member
  uint64_t members_ = 0;
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
      if (left_ == 0) ++members_;
    }
    any_ = any_ || output.pos > 0;
    if (output.pos > 0) return output.pos;
    CAPSTAN_RETURN_IF_ERROR(file_->Check());
    if (left_ != 0) return Broken(file_->path(), "its end is missing");
    if (!any_) return Empty(file_->path());
    return size_t{0};
  }

  uint64_t members() const override { return members_; }
  uint64_t consumed() const override { return input_.pos; }

 private:
  const std::shared_ptr<const MappedFile> file_;
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  ZSTD_inBuffer input_;
  size_t left_ = 0;  // 0: at the end of a frame
  uint64_t members_ = 0;
  bool full_ = false;
  bool any_ = false;
};

}  // namespace

Packed PackedAs(absl::string_view bytes) {
  if (absl::StartsWith(bytes, kGzip)) return Packed::kGzip;
  return absl::StartsWith(bytes, kZstd) ? Packed::kZstd : Packed::kNot;
}

Packed ConsumePackedExtension(absl::string_view* name) {
  for (const char* extension : {".gz", ".gzip"}) {
    if (absl::ConsumeSuffix(name, extension)) return Packed::kGzip;
  }
  for (const char* extension : {".zst", ".zstd"}) {
    if (absl::ConsumeSuffix(name, extension)) return Packed::kZstd;
  }
  return Packed::kNot;
}

absl::StatusOr<std::unique_ptr<ByteStream>> OpenBytes(const std::string& path,
                                                      Packed packed) {
  CAPSTAN_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file,
                           MappedFile::Open(path));
  if (packed == Packed::kGzip) {
    return std::unique_ptr<ByteStream>(
        std::make_unique<GzipStream>(std::move(file)));
  }
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
