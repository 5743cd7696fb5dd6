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

// Each byte is a token; reads from the mapped file.
void ReadBytes(std::shared_ptr<const MappedFile> file, TokenizedText* text) {
  text->size = text->bytes;
  text->of_bytes = true;
  text->read = [file](int64_t begin, int64_t n, int64_t* out) {
    const char* const bytes = file->bytes().data() + begin;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<unsigned char>(bytes[i]);
    }
    return file->Check();
  };
  text->digest = [file] { return DigestOfFile(*file); };
}

// Tokenizes a file into memory, four bytes a token: its two parts separately,
// so that no training token extends into the validation part.
absl::Status Tokenize(const MappedFile& file, double validation_fraction,
                      TokenizedText* text) {
  const auto ids = std::make_shared<std::vector<uint32_t>>();
  const absl::string_view bytes = file.bytes();
  const size_t train = CharacterBegin(
      bytes, static_cast<size_t>(Remaining(text->bytes, validation_fraction)));
  CAPSTAN_RETURN_IF_ERROR(
      AppendTokens(*text->tokenizer, bytes.substr(0, train), file, ids.get()));
  text->train_size = static_cast<int64_t>(ids->size());
  CAPSTAN_RETURN_IF_ERROR(
      AppendTokens(*text->tokenizer, bytes.substr(train), file, ids.get()));
  text->size = static_cast<int64_t>(ids->size());
  text->read = [ids](int64_t begin, int64_t n, int64_t* out) {
    std::copy_n(ids->begin() + begin, n, out);
    return absl::OkStatus();
  };
  text->digest = [ids] { return DigestOfValues(*ids); };
  return absl::OkStatus();
}

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

absl::Status OpenTokenFile(const Config& config, const std::string& folder,
                           std::shared_ptr<const MappedFile> file,
                           TokenizedText* text) {
  absl::StatusOr<std::unique_ptr<TokenFile>> opened =
      TokenFile::Open(std::move(file));
  if (!opened.ok()) return FieldError("path", opened.status().message());
  std::string definition;
  if (!folder.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        definition, tokenizer::TokenizerDefinition(*text->tokenizer, folder));
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
            : absl::StrCat("isn't set, and the model's, in ", folder,
                           ", isn't the one that ", config.path(),
                           " was made with: make it anew with that"));
  }
  const std::shared_ptr<const TokenFile> tokens = *std::move(opened);
  text->size = tokens->tokens();
  text->read = [tokens](int64_t begin, int64_t n, int64_t* out) {
    return tokens->Read(begin, n, out);
  };
  text->digest = [tokens] { return tokens->Digest(); };
  return absl::OkStatus();
}

// `file` as tokens, tokenized now if needed. Errors name the config's field.
absl::StatusOr<TokenizedText> OpenTokens(
    const Config& config, std::shared_ptr<const MappedFile> file) {
  CAPSTAN_ASSIGN_OR_RETURN(ModelTokenizer tokenizer,
                           ChooseTokenizer(config.tokenizer()));
  TokenizedText text;
  text.bytes = static_cast<int64_t>(file->bytes().size());
  text.tokenizer = std::move(tokenizer.tokenizer);
  if (TokenFile::IsTokenFile(file->bytes())) {
    CAPSTAN_RETURN_IF_ERROR(
        OpenTokenFile(config, tokenizer.folder, std::move(file), &text));
  } else {
    const absl::Status is_text = TokenFile::CheckIsText(*file);
    if (!is_text.ok()) return FieldError("path", is_text.message());
    if (!IsBytes(*text.tokenizer)) {
      const absl::Status read =
          Tokenize(*file, config.validation_fraction(), &text);
      if (!read.ok()) return FieldError("path", read.message());
      CAPSTAN_RETURN_IF_ERROR(file->Check());
      return text;
    }
    ReadBytes(std::move(file), &text);
  }
  text.train_size = Remaining(text.size, config.validation_fraction());
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
                   text_.of_bytes ? " bytes" : " tokens"));
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
  CAPSTAN_ASSIGN_OR_RETURN(TokenizedText tokens,
                           OpenTokens(config, *std::move(file)));
  CAPSTAN_RETURN_IF_ERROR(Text(config, tokens, 0, tokens.size).CheckLength(""));
  const int64_t train = tokens.train_size;
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
    CAPSTAN_RETURN_IF_ERROR(text_.read(begin_ + index * length, length, out));
    out += length;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DatasetReader>> Text::Validation() const {
  if (config_.validation_fraction() == 0) return nullptr;
  Config config = config_;
  config.set_shuffle(false);
  config.set_validation_fraction(0);
  std::unique_ptr<Text> validation(new Text(config, text_, end_, text_.size));
  CAPSTAN_RETURN_IF_ERROR(validation->CheckLength("'s validation part"));
  return std::unique_ptr<DatasetReader>(std::move(validation));
}

std::vector<CountedFile> Text::counted_files() const {
  // The validation part is in the file of the reader that it was taken from.
  if (begin_ > 0) return {};
  return {{config_.path(),
           {{"bytes", text_.bytes},
            {"tokens", text_.size},
            {"dropped_tokens", (end_ - begin_) % config_.sequence_length()}}}};
}

absl::StatusOr<std::string> Text::Digest() const { return text_.digest(); }

CAPSTAN_PLUGIN(DatasetReader, Text, capstan::text::Config,
               "a text, or a file of tokens, cut into sequences");

}  // namespace capstan::text
