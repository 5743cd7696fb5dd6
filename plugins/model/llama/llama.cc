// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama.h"

#include "base/status.h"

namespace capstan {
namespace llama {

absl::StatusOr<std::unique_ptr<Llama>> Llama::Create(const Config& config) {
  LlamaCheckpoint checkpoint;
  if (config.pretrained().empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(checkpoint.config, ConfigFromSizes(config));
    return std::unique_ptr<Llama>(new Llama(std::move(checkpoint)));
  }
  Config alone;
  alone.set_pretrained(config.pretrained());
  alone.set_vocab_size(config.vocab_size());
  if (alone.SerializeAsString() != config.SerializeAsString()) {
    return FieldError("pretrained",
                      "is set beside sizes, which the folder's config.json "
                      "gives: set the one or the others");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      checkpoint,
      OpenCheckpoint(config.pretrained(), ConfigFromFolder(config.pretrained()),
                     config.vocab_size()));
  return std::unique_ptr<Llama>(new Llama(std::move(checkpoint)));
}

absl::Status Llama::SaveConfig(const std::string& folder,
                               c10::ScalarType dtype) const {
  return WriteConfig(config(), folder, dtype);
}

}  // namespace llama
}  // namespace capstan
