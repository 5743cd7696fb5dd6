// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llada/llada.h"

#include "base/status.h"

namespace capstan {
namespace llada {

absl::StatusOr<std::unique_ptr<Llada>> Llada::Create(const Config& config) {
  llama::LlamaCheckpoint checkpoint;
  if (config.pretrained().empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(checkpoint.config, ConfigFromSizes(config));
    return std::unique_ptr<Llada>(new Llada(std::move(checkpoint)));
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
      checkpoint, llama::OpenCheckpoint(config.pretrained(),
                                        ConfigFromFolder(config.pretrained()),
                                        config.vocab_size()));
  return std::unique_ptr<Llada>(new Llada(std::move(checkpoint)));
}

absl::Status Llada::SaveConfig(const std::string& folder,
                               c10::ScalarType dtype) const {
  return WriteConfig(config(), folder, dtype);
}

}  // namespace llada
}  // namespace capstan
