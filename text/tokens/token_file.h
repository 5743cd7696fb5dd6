// SPDX-License-Identifier: Apache-2.0
//
// Memory-mapped files of tokens with an index of the documents they belong to.
// All numbers are little-endian:
//
//   header, 64 bytes: "CAPTOKNS", version u32 (1), bytes per token u32 (2 or
//     4), vocabulary u64, tokenizer's hash u64, documents u64, tokens u64,
//     u32 1 if the tokenizer's ends were added else 0, CRC-32C of everything
//     after the tokens u32, 0 u32, CRC-32C of the preceding 60 bytes u32
//   tokens, zero-padded to a multiple of 8 bytes
//   CRC-32C u32 of each 4 MiB of tokens, padded likewise
//   document offsets in tokens, followed by the number of tokens, u64
#ifndef CAPSTAN_TEXT_TOKENS_TOKEN_FILE_H_
#define CAPSTAN_TEXT_TOKENS_TOKEN_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"

namespace capstan::text {

struct TokenFileInfo {
  int64_t vocab_size = 0;       // exclusive bound on ids
  uint64_t tokenizer_hash = 0;  // TokenizerHash of its definition
  bool ends_added = false;      // to each document
};

// CRC-64 (ECMA-182, reflected) of a TokenizerDefinition: distinguishes
// tokenizers, but is not cryptographic.
uint64_t TokenizerHash(absl::string_view definition);

// Writes a token file, which appears when Close returns OK; until then it is a
// hidden sibling. Errors name the file.
class TokenFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(
      const std::string& path, const TokenFileInfo& info);

  // Appends tokens to the current document.
  absl::Status Append(absl::Span<const int64_t> ids);
  // Ends the current document, which may be empty.
  void EndDocument();
  absl::Status Close();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return static_cast<int64_t>(begins_.size()) - 1; }

 private:
  TokenFileWriter(std::unique_ptr<HiddenFile> file, const TokenFileInfo& info);
  absl::Status WriteChunk();
  std::string Header(uint32_t tail_crc) const;

  const std::unique_ptr<HiddenFile> file_;
  const TokenFileInfo info_;
  const size_t token_bytes_;
  int64_t tokens_ = 0;
  std::vector<uint64_t> begins_ = {0};
  std::string chunk_;  // tokens not yet written
  std::vector<uint32_t> crcs_;
};

// Thread-safe.
class TokenFile {
 public:
  // Whether `bytes` begin like a token file.
  static bool IsTokenFile(absl::string_view bytes);
  // DATA_LOSS if a file that doesn't begin like one was one nevertheless: by
  // its name (*.tokens), or by the rest of its header. It must not be read as
  // text.
  static absl::Status CheckIsText(const MappedFile& file);

  // Checks everything but the tokens. Errors name the file: DATA_LOSS if it is
  // damaged, UNIMPLEMENTED for another version.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(
      std::shared_ptr<const MappedFile> file);

  const TokenFileInfo& info() const { return info_; }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  // As base/digest.h's: of its index, which has the tokens' checksums.
  std::string Digest() const;
  // First token of document i; of i = documents(), the number of tokens.
  int64_t DocumentBegin(int64_t i) const;

  // Reads tokens [begin, begin + n), which must exist. Each part of the file is
  // checked on first access: DATA_LOSS if damaged, or if the file has become
  // shorter since.
  absl::Status Read(int64_t begin, int64_t n, int64_t* out) const;

 private:
  explicit TokenFile(std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)) {}
  absl::Status ReadHeader();
  absl::Status CheckTail(uint32_t crc) const;
  absl::Status CheckChunk(int64_t chunk) const;

  const std::shared_ptr<const MappedFile> file_;
  TokenFileInfo info_;
  size_t token_bytes_ = 0;
  int64_t tokens_ = 0;
  int64_t documents_ = 0;
  int64_t chunks_ = 0;
  const char* token_data_ = nullptr;
  const char* crcs_ = nullptr;
  const char* begins_ = nullptr;
  // By chunk: whether its checksum was verified.
  std::unique_ptr<std::atomic<bool>[]> checked_;
};

}  // namespace capstan::text

#endif  // CAPSTAN_TEXT_TOKENS_TOKEN_FILE_H_
