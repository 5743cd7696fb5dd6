// SPDX-License-Identifier: Apache-2.0
#include <isa-l/crc64.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/text/token_file.h"
#include "datasets/text/token_file_format.h"

namespace capstan {
namespace text {

uint64_t TokenizerHash(absl::string_view tokenizer_json) {
  return crc64_ecma_refl(
      0, reinterpret_cast<const unsigned char*>(tokenizer_json.data()),
      tokenizer_json.size());
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
  // Its place; what belongs there is known at the end.
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

}  // namespace text
}  // namespace capstan
