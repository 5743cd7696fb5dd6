// SPDX-License-Identifier: Apache-2.0
#include "datasets/text/text.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "plugins/sdk/plugin.h"

namespace capstan::text {

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
  CAPSTAN_ASSIGN_OR_RETURN(TokenizedText tokens,
                           OpenTokens(config, *std::move(file)));
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
  // Reuses the tensor of an earlier batch: every element is written.
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

CAPSTAN_PLUGIN(DatasetReader, Text, capstan::text::Config,
               "a text, or a file of tokens, cut into sequences");

}  // namespace capstan::text
