// SPDX-License-Identifier: Apache-2.0
#include "text/tokens/token_file.h"

#include <isa-l/crc64.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/status.h"

namespace capstan::text {
namespace {

constexpr char kTokenFileMagic[] = "CAPTOKNS";
constexpr uint32_t kTokenFileVersion = 1;
constexpr size_t kHeaderBytes = 64;
constexpr size_t kTokenChunkBytes = 4 << 20;

// Two bytes for ids below 2^16.
size_t TokenBytes(int64_t vocab_size) { return vocab_size <= 1 << 16 ? 2 : 4; }

uint64_t RoundUp8(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Little-endian, as is the machine.
template <typename Number>
void AppendNumber(Number value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename Number>
Number NumberAt(const char* place) {
  Number value;
  std::memcpy(&value, place, sizeof(value));
  return value;
}

template <typename... Parts>
absl::Status Damaged(const MappedFile& file, const Parts&... problem) {
  return absl::DataLossError(absl::StrCat(file.path(),
                                          " is damaged: ", problem...,
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

absl::Status TokenFile::CheckIsText(const MappedFile& file) {
  const absl::string_view bytes = file.bytes();
  const auto has_header = [&] {
    constexpr size_t kMagicBytes = sizeof(kTokenFileMagic) - 1;
    const std::string checked =
        absl::StrCat(kTokenFileMagic,
                     bytes.substr(kMagicBytes, kHeaderBytes - 4 - kMagicBytes));
    return NumberAt<uint32_t>(bytes.data() + kHeaderBytes - 4) ==
           Crc32c(checked);
  };
  if (IsTokenFile(bytes) || !(absl::EndsWith(file.path(), ".tokens") ||
                              (bytes.size() >= kHeaderBytes && has_header()))) {
    return absl::OkStatus();
  }
  return Damaged(file, "it doesn't begin as a token file does");
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
  // Checks each number separately first, so that no sum overflows.
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
    return Damaged(*file_, "it has ", bytes.size(), " bytes, its header says ",
                   size);
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
      return Damaged(*file_, "document ", i, " begins at token ", begin);
    }
    last = static_cast<int64_t>(begin);
  }
  if (last != tokens_) return Damaged(*file_, "its documents end too early");
  return absl::OkStatus();
}

std::string TokenFile::Digest() const {
  const absl::string_view bytes = file_->bytes();
  return absl::StrCat(tokens_, " tokens, index of ",
                      DigestText(bytes.substr(crcs_ - bytes.data())));
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
    return Damaged(*file_, "the CRC-32C of bytes ", begin, " to ",
                   begin + size - 1, " of its tokens is another");
  }
  const auto n = static_cast<int64_t>(size / token_bytes_);
  const int64_t greatest = token_bytes_ == 2 ? Greatest<uint16_t>(data, n)
                                             : Greatest<uint32_t>(data, n);
  if (greatest >= info_.vocab_size) {
    return Damaged(*file_, "token ", greatest, " isn't in its vocabulary of ",
                   info_.vocab_size);
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
  // A model trusts ids; the file may have been written since it was checked.
  for (int64_t i = 0; i < n; ++i) {
    if (out[i] < info_.vocab_size) continue;
    return Damaged(*file_, "it has changed since it was opened: token ",
                   begin + i, " is ", out[i]);
  }
  return file_->Check();
}

uint64_t TokenizerHash(absl::string_view definition) {
  return crc64_ecma_refl(
      0, reinterpret_cast<const unsigned char*>(definition.data()),
      definition.size());
}

TokenFileWriter::TokenFileWriter(std::unique_ptr<HiddenFile> file,
                                 const TokenFileInfo& info)
    : file_(std::move(file)),
      info_(info),
      token_bytes_(TokenBytes(info.vocab_size)) {}

absl::StatusOr<std::unique_ptr<TokenFileWriter>> TokenFileWriter::Create(
    const std::string& path, const TokenFileInfo& info) {
  if (info.vocab_size < 1 || info.vocab_size > int64_t{1} << 32) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": a vocabulary of ", info.vocab_size, " can't be written"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HiddenFile> file,
                           HiddenFile::Create(path));
  // A placeholder; the header is written at the end.
  CAPSTAN_RETURN_IF_ERROR(file->Write(std::string(kHeaderBytes, '\0')));
  return std::unique_ptr<TokenFileWriter>(
      new TokenFileWriter(std::move(file), info));
}

absl::Status TokenFileWriter::WriteChunk() {
  crcs_.push_back(Crc32c(chunk_));
  CAPSTAN_RETURN_IF_ERROR(file_->Write(chunk_));
  chunk_.clear();
  return absl::OkStatus();
}

absl::Status TokenFileWriter::Append(absl::Span<const int64_t> ids) {
  for (int64_t id : ids) {
    if (id < 0 || id >= info_.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_->path(), ": token ", id,
                       " isn't in a vocabulary of ", info_.vocab_size));
    }
    if (token_bytes_ == 2) {
      AppendNumber(static_cast<uint16_t>(id), &chunk_);
    } else {
      AppendNumber(static_cast<uint32_t>(id), &chunk_);
    }
    ++tokens_;
    if (chunk_.size() == kTokenChunkBytes) {
      CAPSTAN_RETURN_IF_ERROR(WriteChunk());
    }
  }
  return absl::OkStatus();
}

void TokenFileWriter::EndDocument() {
  begins_.push_back(static_cast<uint64_t>(tokens_));
}

std::string TokenFileWriter::Header(uint32_t tail_crc) const {
  std::string header = kTokenFileMagic;
  AppendNumber(kTokenFileVersion, &header);
  AppendNumber(static_cast<uint32_t>(token_bytes_), &header);
  AppendNumber(static_cast<uint64_t>(info_.vocab_size), &header);
  AppendNumber(info_.tokenizer_hash, &header);
  AppendNumber(static_cast<uint64_t>(documents()), &header);
  AppendNumber(static_cast<uint64_t>(tokens_), &header);
  AppendNumber(static_cast<uint32_t>(info_.ends_added ? 1 : 0), &header);
  AppendNumber(tail_crc, &header);
  AppendNumber(uint32_t{0}, &header);
  AppendNumber(Crc32c(header), &header);
  return header;
}

absl::Status TokenFileWriter::Close() {
  const uint64_t bytes = tokens_ * token_bytes_;
  if (!chunk_.empty()) CAPSTAN_RETURN_IF_ERROR(WriteChunk());
  CAPSTAN_RETURN_IF_ERROR(
      file_->Write(std::string(RoundUp8(bytes) - bytes, '\0')));
  std::string tail;
  for (uint32_t crc : crcs_) AppendNumber(crc, &tail);
  tail.resize(RoundUp8(tail.size()));
  for (uint64_t begin : begins_) AppendNumber(begin, &tail);
  CAPSTAN_RETURN_IF_ERROR(file_->Write(tail));
  CAPSTAN_RETURN_IF_ERROR(file_->Rewind());
  CAPSTAN_RETURN_IF_ERROR(file_->Write(Header(Crc32c(tail))));
  return file_->Close();
}

}  // namespace capstan::text
