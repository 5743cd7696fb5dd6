// SPDX-License-Identifier: Apache-2.0
#include "datasets/text/token_source.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "text/tokens/in_order.h"
#include "text/tokens/text_pieces.h"
#include "text/tokens/token_file.h"

namespace capstan::text {
namespace {

// The bytes that a thread tokenizes at a time.
constexpr size_t kPieceBytes = 1 << 20;

int64_t Remaining(int64_t size, double validation_fraction) {
  return static_cast<int64_t>(static_cast<size_t>(static_cast<double>(size) *
                                                  (1.0 - validation_fraction)));
}

// Each byte is a token; reads from the mapped file.
class ByteSource final : public TokenSource {
 public:
  explicit ByteSource(std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)) {}

  int64_t size() const override {
    return static_cast<int64_t>(file_->bytes().size());
  }
  bool bytes() const override { return true; }
  int64_t TrainSize(double validation_fraction) const override {
    return Remaining(size(), validation_fraction);
  }
  absl::Status Read(int64_t begin, int64_t n, int64_t* out) const override {
    const char* const bytes = file_->bytes().data() + begin;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<unsigned char>(bytes[i]);
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<const MappedFile> file_;
};

// A text's tokens in memory, four bytes each.
class MemorySource final : public TokenSource {
 public:
  // Tokenizes the two parts of the text separately, so that no training token
  // extends into the validation part.
  static absl::StatusOr<std::shared_ptr<const TokenSource>> Make(
      const Tokenizer& tokenizer, absl::string_view text,
      double validation_fraction) {
    auto made = std::make_shared<MemorySource>();
    size_t train = static_cast<size_t>(
        Remaining(static_cast<int64_t>(text.size()), validation_fraction));
    // Not inside a character.
    while (train < text.size() && validation_fraction > 0 &&
           (static_cast<unsigned char>(text[train]) & 0xc0) == 0x80) {
      ++train;
    }
    CAPSTAN_RETURN_IF_ERROR(made->Add(tokenizer, text.substr(0, train)));
    made->train_size_ = made->size();
    CAPSTAN_RETURN_IF_ERROR(made->Add(tokenizer, text.substr(train)));
    return made;
  }

  int64_t size() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t TrainSize(double) const override { return train_size_; }
  absl::Status Read(int64_t begin, int64_t n, int64_t* out) const override {
    std::copy_n(ids_.begin() + begin, n, out);
    return absl::OkStatus();
  }

 private:
  absl::Status Add(const Tokenizer& tokenizer, absl::string_view text) {
    if (text.empty()) return absl::OkStatus();
    const std::vector<absl::string_view> pieces =
        CutText(tokenizer, text, kPieceBytes);
    return InOrder<std::vector<int64_t>>(
        static_cast<int>(std::thread::hardware_concurrency()),
        static_cast<int64_t>(pieces.size()),
        [&](int64_t i) { return tokenizer.Encode(pieces[i]); },
        [this](const std::vector<int64_t>& ids) {
          ids_.insert(ids_.end(), ids.begin(), ids.end());
          return absl::OkStatus();
        });
  }

  std::vector<uint32_t> ids_;
  int64_t train_size_ = 0;
};

// A token file, mapped.
class FileSource final : public TokenSource {
 public:
  explicit FileSource(std::unique_ptr<TokenFile> file)
      : file_(std::move(file)) {}

  int64_t size() const override { return file_->tokens(); }
  int64_t TrainSize(double validation_fraction) const override {
    return Remaining(size(), validation_fraction);
  }
  absl::Status Read(int64_t begin, int64_t n, int64_t* out) const override {
    return file_->Read(begin, n, out);
  }

 private:
  const std::unique_ptr<TokenFile> file_;
};

absl::StatusOr<std::shared_ptr<const Tokenizer>> OpenTokenizer(
    const std::string& folder) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(folder);
  if (!tokenizer.ok()) {
    return FieldError("tokenizer.folder", tokenizer.status().message());
  }
  return std::shared_ptr<const Tokenizer>(*std::move(tokenizer));
}

absl::StatusOr<TokenizedText> OpenTokenFile(
    const Config& config, std::shared_ptr<const MappedFile> file) {
  absl::StatusOr<std::unique_ptr<TokenFile>> opened =
      TokenFile::Open(std::move(file));
  if (!opened.ok()) return FieldError("path", opened.status().message());
  TokenizedText text;
  std::string json;
  if (config.tokenizer().has_folder()) {
    CAPSTAN_ASSIGN_OR_RETURN(text.tokenizer,
                             OpenTokenizer(config.tokenizer().folder()));
    CAPSTAN_ASSIGN_OR_RETURN(
        json, ReadWholeFile(config.tokenizer().folder() + "/tokenizer.json"));
  } else if (config.tokenizer().has_bytes()) {
    text.tokenizer = NewByteTokenizer();
    json = ByteTokenizerJson() + "\n";  // as its Save writes it
  } else {
    return FieldError(
        "tokenizer",
        absl::StrCat("isn't set, but ", config.path(),
                     " holds tokens: name the folder of the tokenizer that "
                     "made them"));
  }
  if (TokenizerHash(json) != (*opened)->info().tokenizer_hash) {
    return FieldError(
        "tokenizer",
        absl::StrCat("isn't the one that ", config.path(), " was made with"));
  }
  text.tokens = std::make_shared<FileSource>(*std::move(opened));
  return text;
}

}  // namespace

absl::StatusOr<TokenizedText> OpenTokens(
    const Config& config, std::shared_ptr<const MappedFile> file) {
  if (TokenFile::IsTokenFile(file->bytes())) {
    return OpenTokenFile(config, std::move(file));
  }
  TokenizedText text;
  if (!config.tokenizer().has_folder()) {
    text.tokens = std::make_shared<ByteSource>(std::move(file));
    text.tokenizer = NewByteTokenizer();
    return text;
  }
  CAPSTAN_ASSIGN_OR_RETURN(text.tokenizer,
                           OpenTokenizer(config.tokenizer().folder()));
  CAPSTAN_ASSIGN_OR_RETURN(text.tokens,
                           MemorySource::Make(*text.tokenizer, file->bytes(),
                                              config.validation_fraction()));
  return text;
}

}  // namespace capstan::text
