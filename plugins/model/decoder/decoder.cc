// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/decoder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/model/common/config.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder {
namespace {

// Random weights of these sizes, from config.config().
absl::StatusOr<DecoderCheckpoint> FromFile(
    const Config& config, absl::StatusOr<DecoderConfig> sizes) {
  if (!sizes.ok()) return FieldError("config", sizes.status().message());
  DecoderCheckpoint checkpoint;
  checkpoint.config = *std::move(sizes);
  if (config.vocab_size() != 0) {
    checkpoint.config.vocab_size = config.vocab_size();
    CAPSTAN_RETURN_IF_ERROR(FinishSizes(&checkpoint.config));
  }
  return checkpoint;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const Config& config) {
  if (config.pretrained().empty() == config.config().empty()) {
    return FieldError(
        "pretrained",
        config.config().empty()
            ? "is missing: name a folder here, or a config.json as `config` "
              "for random weights"
            : "is set beside `config`: set the one or the other");
  }
  const bool random = config.pretrained().empty();
  absl::StatusOr<DecoderConfig> sizes = random
                                            ? ReadConfigFile(config.config())
                                            : ReadFolder(config.pretrained());
  if (sizes.ok() && config.score_head()) AddScoreHead(&*sizes);
  absl::StatusOr<DecoderCheckpoint> checkpoint =
      random ? FromFile(config, std::move(sizes))
             : OpenCheckpoint(config.pretrained(), std::move(sizes),
                              config.vocab_size());
  CAPSTAN_RETURN_IF_ERROR(checkpoint.status());
  return std::unique_ptr<Decoder>(new Decoder(*std::move(checkpoint)));
}

}  // namespace capstan::decoder
