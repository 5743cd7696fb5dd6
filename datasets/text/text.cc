// SPDX-License-Identifier: Apache-2.0
#include "datasets/text/text.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/byte_tokenizer.h"
#include "plugins/sdk/plugin.h"

namespace capstan {
namespace text {
namespace {

// Where the part that is trained on ends.
size_t TrainBytes(const Config& config, size_t bytes) {
  return static_cast<size_t>(static_cast<double>(bytes) *
                             (1.0 - config.validation_fraction()));
}

absl::Status CheckLength(const Config& config, const std::string& path,
                         const char* part, size_t bytes) {
  if (static_cast<int64_t>(bytes) >= config.sequence_length()) {
    return absl::OkStatus();
  }
  return FieldError("sequence_length",
                    absl::StrCat("is ", config.sequence_length(), ", but ",
                                 path, part, " has only ", bytes, " bytes"));
}

}  // namespace

Text::Text(const Config& config, std::shared_ptr<MappedFile> file,
           absl::string_view part)
    : config_(config),
      file_(std::move(file)),
      part_(part),
      tokenizer_(NewByteTokenizer()) {}

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
  absl::StatusOr<std::shared_ptr<MappedFile>> file =
      MappedFile::Open(config.path());
  if (!file.ok()) return FieldError("path", file.status().message());
  const absl::string_view all = (*file)->bytes();
  CAPSTAN_RETURN_IF_ERROR(CheckLength(config, config.path(), "", all.size()));
  const absl::string_view part = all.substr(0, TrainBytes(config, all.size()));
  CAPSTAN_RETURN_IF_ERROR(CheckLength(
      config, config.path(), " without its validation part", part.size()));
  return std::unique_ptr<Text>(new Text(config, *std::move(file), part));
}

absl::Status Text::Read(absl::Span<const int64_t> indices, Batch* batch) const {
  const int64_t length = config_.sequence_length();
  const std::array<int64_t, 2> shape = {static_cast<int64_t>(indices.size()),
                                        length};
  // Of an earlier batch, if it has the shape: every element is written.
  at::Tensor& ids = (*batch)["input_ids"];
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
    const char* begin = part_.data() + index * length;
    for (int64_t i = 0; i < length; ++i) {
      *out++ = static_cast<unsigned char>(begin[i]);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DatasetReader>> Text::Validation() const {
  if (config_.validation_fraction() == 0) return nullptr;
  const absl::string_view part =
      file_->bytes().substr(TrainBytes(config_, file_->bytes().size()));
  CAPSTAN_RETURN_IF_ERROR(
      CheckLength(config_, config_.path(), "'s validation part", part.size()));
  Config config = config_;
  config.set_validation_fraction(0);
  config.set_shuffle(false);
  return std::unique_ptr<DatasetReader>(new Text(config, file_, part));
}

CAPSTAN_PLUGIN(DatasetReader, Text, capstan::text::Config,
               "a memory-mapped text file, cut into sequences");

}  // namespace text
}  // namespace capstan
