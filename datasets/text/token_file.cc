// SPDX-License-Identifier: Apache-2.0
#include "datasets/text/token_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/text/token_file_format.h"

namespace capstan {
namespace text {
namespace {

absl::Status Damaged(const MappedFile& file, absl::string_view problem) {
  return absl::DataLossError(absl::StrCat(file.path(), " is damaged: ", problem,
                                          "; run `trainer tokenize` again"));
}

// The greatest of n tokens.
template <typename Token>
int64_t Greatest(const char* from, int64_t n) {
  Token greatest = 0;
  for (int64_t i = 0; i < n; ++i) {
    greatest = std::max(greatest, NumberAt<Token>(from + i * sizeof(Token)));
  }
  return greatest;
}

template <typename Token>
void Copy(const char* from, int64_t n, int64_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = NumberAt<Token>(from + i * sizeof(Token));
  }
}

}  // namespace

bool TokenFile::IsTokenFile(absl::string_view bytes) {
  return absl::StartsWith(bytes, kTokenFileMagic);
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(
    std::shared_ptr<const MappedFile> file) {
  std::unique_ptr<TokenFile> opened(new TokenFile(std::move(file)));
  CAPSTAN_RETURN_IF_ERROR(opened->ReadHeader());
  return opened;
}

absl::Status TokenFile::ReadHeader() {
  const absl::string_view bytes = file_->bytes();
  if (!IsTokenFile(bytes) || bytes.size() < kHeaderBytes) {
    return Damaged(*file_, "it has no whole header");
  }
  const char* const header = bytes.data();
  const auto version = NumberAt<uint32_t>(header + 8);
  if (version != kTokenFileVersion) {
    return absl::UnimplementedError(
        absl::StrCat(file_->path(), " is a token file of version ", version,
                     ", this is of version ", kTokenFileVersion));
  }
  if (NumberAt<uint32_t>(header + 60) !=
      Crc32c(bytes.substr(0, kHeaderBytes - 4))) {
    return Damaged(*file_, "its header's CRC-32C is another");
  }
  token_bytes_ = NumberAt<uint32_t>(header + 12);
  const auto vocab_size = NumberAt<uint64_t>(header + 16);
  info_.tokenizer_hash = NumberAt<uint64_t>(header + 24);
  const auto documents = NumberAt<uint64_t>(header + 32);
  const auto tokens = NumberAt<uint64_t>(header + 40);
  info_.ends_added = NumberAt<uint32_t>(header + 48) != 0;
  // Each number first by itself, so that no sum overflows.
  if (vocab_size < 1 || vocab_size > uint64_t{1} << 32 ||
      token_bytes_ != TokenBytes(static_cast<int64_t>(vocab_size)) ||
      documents > bytes.size() || tokens > bytes.size()) {
    return Damaged(*file_, "its header says what can't be");
  }
  info_.vocab_size = static_cast<int64_t>(vocab_size);
  documents_ = static_cast<int64_t>(documents);
  tokens_ = static_cast<int64_t>(tokens);
  const uint64_t token_room = tokens * token_bytes_;
  const uint64_t chunks =
      (token_room + kTokenChunkBytes - 1) / kTokenChunkBytes;
  const uint64_t crcs_at = kHeaderBytes + RoundUp8(token_room);
  const uint64_t begins_at = crcs_at + RoundUp8(4 * chunks);
  const uint64_t size = begins_at + 8 * (documents + 1);
  if (size != bytes.size()) {
    return Damaged(*file_, absl::StrCat("it has ", bytes.size(),
                                        " bytes, its header says ", size));
  }
  chunks_ = static_cast<int64_t>(chunks);
  token_data_ = header + kHeaderBytes;
  crcs_ = header + crcs_at;
  begins_ = header + begins_at;
  checked_ = std::make_unique<std::atomic<bool>[]>(chunks);
  for (uint64_t i = 0; i < chunks; ++i) checked_[i] = false;
  return CheckTail(NumberAt<uint32_t>(header + 52));
}

absl::Status TokenFile::CheckTail(uint32_t crc) const {
  const absl::string_view bytes = file_->bytes();
  if (Crc32c(bytes.substr(crcs_ - bytes.data())) != crc) {
    return Damaged(*file_, "its index's CRC-32C is another");
  }
  int64_t last = 0;
  for (int64_t i = 0; i <= documents_; ++i) {
    const auto begin = NumberAt<uint64_t>(begins_ + 8 * i);
    if (begin > static_cast<uint64_t>(tokens_) ||
        static_cast<int64_t>(begin) < last || (i == 0 && begin != 0)) {
      return Damaged(*file_,
                     absl::StrCat("document ", i, " begins at token ", begin));
    }
    last = static_cast<int64_t>(begin);
  }
  if (last != tokens_) return Damaged(*file_, "its documents end too early");
  return absl::OkStatus();
}

int64_t TokenFile::DocumentBegin(int64_t i) const {
  return static_cast<int64_t>(NumberAt<uint64_t>(begins_ + 8 * i));
}

absl::Status TokenFile::CheckChunk(int64_t chunk) const {
  if (checked_[chunk].load(std::memory_order_relaxed)) return absl::OkStatus();
  const uint64_t begin = chunk * kTokenChunkBytes;
  const uint64_t size =
      std::min<uint64_t>(kTokenChunkBytes, tokens_ * token_bytes_ - begin);
  const char* const data = token_data_ + begin;
  if (Crc32c({data, size}) != NumberAt<uint32_t>(crcs_ + 4 * chunk)) {
    return Damaged(*file_,
                   absl::StrCat("the CRC-32C of bytes ", begin, " to ",
                                begin + size - 1, " of its tokens is another"));
  }
  const auto n = static_cast<int64_t>(size / token_bytes_);
  const int64_t greatest = token_bytes_ == 2 ? Greatest<uint16_t>(data, n)
                                             : Greatest<uint32_t>(data, n);
  if (greatest >= info_.vocab_size) {
    return Damaged(
        *file_, absl::StrCat("token ", greatest, " isn't in its vocabulary of ",
                             info_.vocab_size));
  }
  checked_[chunk].store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status TokenFile::Read(int64_t begin, int64_t n, int64_t* out) const {
  if (begin < 0 || n < 0 || n > tokens_ || begin > tokens_ - n) {
    return absl::OutOfRangeError(
        absl::StrCat(file_->path(), ": there are no tokens ", begin, " to ",
                     begin + n - 1, ", only ", tokens_));
  }
  if (n == 0) return absl::OkStatus();
  const int64_t first = begin * token_bytes_ / kTokenChunkBytes;
  const int64_t last = ((begin + n) * token_bytes_ - 1) / kTokenChunkBytes;
  for (int64_t chunk = first; chunk <= last; ++chunk) {
    CAPSTAN_RETURN_IF_ERROR(CheckChunk(chunk));
  }
  const char* const from = token_data_ + begin * token_bytes_;
  if (token_bytes_ == 2) {
    Copy<uint16_t>(from, n, out);
  } else {
    Copy<uint32_t>(from, n, out);
  }
  return absl::OkStatus();
}

}  // namespace text
}  // namespace capstan
