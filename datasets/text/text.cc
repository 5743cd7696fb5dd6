// SPDX-License-Identifier: Apache-2.0
#include "datasets/text/text.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/lib/token_difference.h"
#include "plugins/sdk/model_tokenizer.h"
#include "plugins/sdk/plugin.h"
#include "text/tokenizer/definition.h"
#include "text/tokens/text_pieces.h"
#include "text/tokens/token_file.h"

namespace capstan::text {
namespace {

int64_t Remaining(int64_t size, double validation_fraction) {
  return static_cast<int64_t>(static_cast<double>(size) *
                              (1.0 - validation_fraction));
}

}  // namespace

// The tokens of a text from its beginning to its end. Thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t size() const = 0;
  // Whether each token is a byte of the text.
  virtual bool bytes() const { return false; }
  // Where validation begins if it gets this fraction of the text.
  virtual int64_t TrainSize(double validation_fraction) const {
    return Remaining(size(), validation_fraction);
  }
  // Reads tokens [begin, begin + n), which must exist.
  virtual absl::Status Read(int64_t begin, int64_t n, int64_t* out) const = 0;
  virtual absl::StatusOr<std::string> Digest() const = 0;
};

namespace {

// Each byte is a token; reads from the mapped file.
class ByteSource final : public TokenSource {
 public:
  explicit ByteSource(std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)) {}

  int64_t size() const override {
    return static_cast<int64_t>(file_->bytes().size());
  }
  bool bytes() const override { return true; }
  absl::Status Read(int64_t begin, int64_t n, int64_t* out) const override {
    const char* const bytes = file_->bytes().data() + begin;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<unsigned char>(bytes[i]);
    }
    return file_->Check();
  }
  absl::StatusOr<std::string> Digest() const override {
    return DigestOfFile(*file_);
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
      const Tokenizer& tokenizer, const MappedFile& file,
      double validation_fraction) {
    auto made = std::make_shared<MemorySource>();
    const absl::string_view text = file.bytes();
    size_t train = static_cast<size_t>(
        Remaining(static_cast<int64_t>(text.size()), validation_fraction));
    // Not inside a character.
    while (train < text.size() && validation_fraction > 0 &&
           (static_cast<unsigned char>(text[train]) & 0xc0) == 0x80) {
      ++train;
    }
    CAPSTAN_RETURN_IF_ERROR(
        AppendTokens(tokenizer, text.substr(0, train), file, &made->ids_));
    made->train_size_ = made->size();
    CAPSTAN_RETURN_IF_ERROR(
        AppendTokens(tokenizer, text.substr(train), file, &made->ids_));
    return made;
  }

  int64_t size() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t TrainSize(double) const override { return train_size_; }
  absl::Status Read(int64_t begin, int64_t n, int64_t* out) const override {
    std::copy_n(ids_.begin() + begin, n, out);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Digest() const override {
    return DigestOfValues(ids_);
  }

 private:
  std::vector<uint32_t> ids_;
  int64_t train_size_ = 0;
};

// A token file, mapped.
class FileSource final : public TokenSource {
 public:
  explicit FileSource(std::unique_ptr<TokenFile> file)
      : file_(std::move(file)) {}

  int64_t size() const override { return file_->tokens(); }
  absl::Status Read(int64_t begin, int64_t n, int64_t* out) const override {
    return file_->Read(begin, n, out);
  }
  absl::StatusOr<std::string> Digest() const override {
    return file_->Digest();
  }

 private:
  const std::unique_ptr<TokenFile> file_;
};

// The config's tokenizer, else the model's, else the bytes.
absl::StatusOr<ModelTokenizer> ChooseTokenizer(const TokenizerConfig& config) {
  if (config.has_bytes()) return ModelTokenizer{NewByteTokenizer(), ""};
  CAPSTAN_ASSIGN_OR_RETURN(
      ModelTokenizer chosen,
      TokenizerToRead(config.folder(), "tokenizer.folder"));
  if (chosen.tokenizer == nullptr) chosen.tokenizer = NewByteTokenizer();
  return chosen;
}

bool IsBytes(const Tokenizer& tokenizer) {
  return TokenDifference(tokenizer, *NewByteTokenizer()).empty();
}

absl::StatusOr<TokenizedText> OpenTokenFile(
    const Config& config, ModelTokenizer tokenizer,
    std::shared_ptr<const MappedFile> file) {
  absl::StatusOr<std::unique_ptr<TokenFile>> opened =
      TokenFile::Open(std::move(file));
  if (!opened.ok()) return FieldError("path", opened.status().message());
  std::string definition;
  if (!tokenizer.folder.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(definition,
                             tokenizer::TokenizerDefinition(tokenizer.folder));
  } else if (config.tokenizer().has_bytes()) {
    definition = ByteTokenizerJson() + "\n";  // as its Save writes it
  } else {
    return FieldError(
        "tokenizer",
        absl::StrCat("isn't set, but ", config.path(),
                     " holds tokens: name the folder of the tokenizer that "
                     "made them"));
  }
  if (TokenizerHash(definition) != (*opened)->info().tokenizer_hash) {
    return FieldError(
        "tokenizer",
        config.has_tokenizer()
            ? absl::StrCat("isn't the one that ", config.path(),
                           " was made with")
            : absl::StrCat("isn't set, and the model's, in ", tokenizer.folder,
                           ", isn't the one that ", config.path(),
                           " was made with: make it anew with that"));
  }
  TokenizedText text;
  text.tokenizer = std::move(tokenizer.tokenizer);
  text.tokens = std::make_shared<FileSource>(*std::move(opened));
  return text;
}

// `file` as tokens, tokenized now if needed. Errors name the config's field.
absl::StatusOr<TokenizedText> OpenTokens(
    const Config& config, std::shared_ptr<const MappedFile> file) {
  CAPSTAN_ASSIGN_OR_RETURN(ModelTokenizer tokenizer,
                           ChooseTokenizer(config.tokenizer()));
  if (TokenFile::IsTokenFile(file->bytes())) {
    return OpenTokenFile(config, std::move(tokenizer), std::move(file));
  }
  const absl::Status is_text = TokenFile::CheckIsText(*file);
  if (!is_text.ok()) return FieldError("path", is_text.message());
  TokenizedText text;
  text.tokenizer = std::move(tokenizer.tokenizer);
  if (IsBytes(*text.tokenizer)) {
    text.tokens = std::make_shared<ByteSource>(std::move(file));
    return text;
  }
  absl::StatusOr<std::shared_ptr<const TokenSource>> tokens =
      MemorySource::Make(*text.tokenizer, *file, config.validation_fraction());
  if (!tokens.ok()) return FieldError("path", tokens.status().message());
  text.tokens = *std::move(tokens);
  CAPSTAN_RETURN_IF_ERROR(file->Check());
  return text;
}

}  // namespace

Text::Text(const Config& config, TokenizedText text, int64_t begin, int64_t end)
    : config_(config), text_(std::move(text)), begin_(begin), end_(end) {}

absl::Status Text::CheckLength(const char* part) const {
  if (size() > 0) return absl::OkStatus();
  return FieldError(
      "sequence_length",
      absl::StrCat("is ", config_.sequence_length(), ", but ", config_.path(),
                   part, " has only ", end_ - begin_,
                   text_.tokens->bytes() ? " bytes" : " tokens"));
}

absl::StatusOr<std::unique_ptr<Text>> Text::Create(const Config& config) {
  if (config.path().empty()) {
    return FieldError("path", "is not set: name a text file");
  }
  if (config.sequence_length() < 2) {
    return FieldError(
        "sequence_length",
        absl::StrCat("must be at least 2, is ", config.sequence_length()));
  }
  if (!(config.validation_fraction() >= 0 &&
        config.validation_fraction() < 1)) {
    return FieldError(
        "validation_fraction",
        absl::StrCat("must be in [0, 1), is ", config.validation_fraction()));
  }
  absl::StatusOr<std::shared_ptr<const MappedFile>> file =
      MappedFile::Open(config.path());
  if (!file.ok()) return FieldError("path", file.status().message());
  const auto bytes = static_cast<int64_t>((*file)->bytes().size());
  CAPSTAN_ASSIGN_OR_RETURN(TokenizedText tokens,
                           OpenTokens(config, *std::move(file)));
  tokens.bytes = bytes;
  const int64_t all = tokens.tokens->size();
  CAPSTAN_RETURN_IF_ERROR(Text(config, tokens, 0, all).CheckLength(""));
  const int64_t train = tokens.tokens->TrainSize(config.validation_fraction());
  std::unique_ptr<Text> text(new Text(config, std::move(tokens), 0, train));
  CAPSTAN_RETURN_IF_ERROR(text->CheckLength(" without its validation part"));
  return text;
}

absl::Status Text::Read(absl::Span<const int64_t> indices, Batch* batch) const {
  const int64_t length = config_.sequence_length();
  const std::array<int64_t, 2> shape = {static_cast<int64_t>(indices.size()),
                                        length};
  at::Tensor& ids = (*batch)[kInputIds];
  if (!ids.defined() || ids.sizes() != at::IntArrayRef(shape)) {
    ids = at::empty(shape, at::kLong);
  }
  int64_t* out = ids.mutable_data_ptr<int64_t>();
  for (int64_t index : indices) {
    if (index < 0 || index >= size()) {
      return absl::OutOfRangeError(absl::StrCat(config_.path(),
                                                ": there is no sample ", index,
                                                ", only 0 to ", size() - 1));
    }
    CAPSTAN_RETURN_IF_ERROR(
        text_.tokens->Read(begin_ + index * length, length, out));
    out += length;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DatasetReader>> Text::Validation() const {
  if (config_.validation_fraction() == 0) return nullptr;
  Config config = config_;
  config.set_shuffle(false);
  config.set_validation_fraction(0);
  std::unique_ptr<Text> validation(
      new Text(config, text_, end_, text_.tokens->size()));
  CAPSTAN_RETURN_IF_ERROR(validation->CheckLength("'s validation part"));
  return std::unique_ptr<DatasetReader>(std::move(validation));
}

std::vector<CountedFile> Text::counted_files() const {
  // The validation part is in the file of the reader that it was taken from.
  if (begin_ > 0) return {};
  return {{config_.path(),
           {{"bytes", text_.bytes},
            {"tokens", text_.tokens->size()},
            {"dropped_tokens", (end_ - begin_) % config_.sequence_length()}}}};
}

absl::StatusOr<std::string> Text::Digest() const {
  return text_.tokens->Digest();
}

CAPSTAN_PLUGIN(DatasetReader, Text, capstan::text::Config,
               "a text, or a file of tokens, cut into sequences");

}  // namespace capstan::text
