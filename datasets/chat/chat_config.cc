// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/chat_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "datasets/chat/sample_table.h"
#include "plugins/sdk/model_tokenizer.h"

namespace capstan::chat {
namespace {

// The index stores token offsets of rows and packs in 32 bits.
constexpr int64_t kMostLength = 1 << 24;

absl::Status CheckWeights(const Config& config) {
  bool any = false;
  for (const Source& source : config.source()) any |= source.weight() != 0;
  for (const Source& source : config.source()) {
    if (any && !(source.weight() > 0 && source.weight() < 1e9)) {
      return FieldError(
          "source",
          absl::StrCat(source.path(), " has the weight ", source.weight(),
                       ": either all sources have one greater than 0, or "
                       "none"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSplit(const Config& config) {
  const Split& split = config.split();
  const auto wrong = [](absl::string_view what) {
    return FieldError("split", what);
  };
  if (config.part() != TRAINING && !config.has_split()) {
    return FieldError("part", "needs a split that it is a part of");
  }
  if (!config.has_split()) return absl::OkStatus();
  if (config.validation_fraction() != 0) {
    return wrong("can't be set together with validation_fraction");
  }
  const double sum = split.train() + split.validation() + split.test();
  if (!(split.train() > 0 && split.validation() >= 0 && split.test() >= 0 &&
        std::abs(sum - 1) < 1e-6)) {
    return wrong(absl::StrCat(
        "train, validation and test must add up to 1, the first greater than "
        "0; they are ",
        split.train(), ", ", split.validation(), " and ", split.test()));
  }
  if ((config.part() == VALIDATION && split.validation() == 0) ||
      (config.part() == TESTING && split.test() == 0)) {
    return FieldError("part", absl::StrCat(Part_Name(config.part()),
                                           " has no share in the split"));
  }
  return absl::OkStatus();
}

absl::Status CheckEpoch(const Config& config) {
  const bool weighted =
      config.source_size() > 0 && config.source(0).weight() > 0;
  if (config.epoch_samples() == 0 || (config.epoch_samples() > 0 && weighted)) {
    return absl::OkStatus();
  }
  return FieldError("epoch_samples",
                    weighted ? "must not be negative"
                             : "is for sources with weights; an epoch of "
                               "others is each sample once");
}

// The most that a sample may have where the config doesn't say: what the model
// in `folder` ("": unknown) takes, if that is less than is usual.
int64_t DefaultLength(const std::string& folder) {
  int64_t length = kDefaultLength;
  const absl::StatusOr<std::string> text =
      ReadWholeFile(absl::StrCat(folder, "/config.json"));
  if (folder.empty() || !text.ok()) return length;
  const auto json = ParseJson<nlohmann::json>(*text);
  for (const char* key : {"max_position_embeddings", "max_sequence_length"}) {
    if (!json.is_object() || !json.contains(key)) continue;
    const int64_t positions = JsonInteger(json[key]).value_or(length);
    if (positions >= 2) length = std::min(length, positions);
  }
  return length;
}

}  // namespace

absl::StatusOr<Config> Complete(Config config) {
  if (config.path().empty() == config.source().empty()) {
    return FieldError(config.path().empty() ? "path" : "source",
                      config.path().empty()
                          ? "is not set: name a file of rows, or sources"
                          : "can't be set together with path");
  }
  if (!config.path().empty()) config.add_source()->set_path(config.path());
  for (Source& source : *config.mutable_source()) {
    if (source.path().empty()) {
      return FieldError("source", "one has no path");
    }
    if (source.kind() == AUTO) source.set_kind(config.kind());
    if (source.loss_on() == BY_KIND) source.set_loss_on(config.loss_on());
  }
  CAPSTAN_RETURN_IF_ERROR(CheckWeights(config));
  CAPSTAN_RETURN_IF_ERROR(CheckSplit(config));
  CAPSTAN_RETURN_IF_ERROR(CheckEpoch(config));
  if (config.max_length() == 0) {
    config.set_max_length(DefaultLength(CurrentModelTokenizer().folder));
  }
  if (config.max_length() < 2 || config.max_length() > kMostLength) {
    return FieldError(
        "max_length",
        absl::StrCat("must be from 2 to ", kMostLength,
                     ", or 0 for the default, is ", config.max_length()));
  }
  if (config.truncation() != KEEP_START && CutsRows(config.packing())) {
    return FieldError("truncation", absl::StrCat("is for rows that are cut to "
                                                 "max_length, which packing: ",
                                                 Packing_Name(config.packing()),
                                                 " doesn't: leave it out"));
  }
  if (!(config.validation_fraction() >= 0 &&
        config.validation_fraction() < 1)) {
    return FieldError(
        "validation_fraction",
        absl::StrCat("must be in [0, 1), is ", config.validation_fraction()));
  }
  if (!(config.min_trained_share() >= 0 && config.min_trained_share() <= 1)) {
    return FieldError(
        "min_trained_share",
        absl::StrCat("must be in [0, 1], is ", config.min_trained_share()));
  }
  return config;
}

absl::StatusOr<Kind> KindOfBatches(const Config& config) {
  Kind kind = AUTO;
  for (const Source& source : config.source()) {
    if (source.kind() >= PREFERENCE) kind = source.kind();
  }
  if (kind == AUTO) return kind;
  for (const Source& source : config.source()) {
    if (source.kind() == kind) continue;
    return FieldError(
        "source", absl::StrCat("some are kind: ", Kind_Name(kind),
                               " and some aren't: they can't be in one batch"));
  }
  if (config.packing() != NONE) {
    return FieldError("packing",
                      absl::StrCat("texts of kind: ", Kind_Name(kind),
                                   " can't be packed: leave it "
                                   "out"));
  }
  if (kind == PROMPT && config.truncation() != KEEP_START) {
    return FieldError("truncation",
                      "prompts are never cut, as that would be another "
                      "question: leave it out");
  }
  return kind;
}

}  // namespace capstan::chat
