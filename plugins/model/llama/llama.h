// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/decoder/decoder_model.h"
#include "plugins/model/llama/llama.pb.h"

namespace capstan::llama {

// From a Hugging Face folder whose model_type is "llama". An error names the
// file and the key.
absl::StatusOr<decoder::DecoderConfig> ConfigFromFolder(
    const std::string& folder);

// LlamaForCausalLM. capstan.decoder opens folders of other families, too; this
// one also makes models of given sizes.
class Llama final : public decoder::DecoderModel {
 public:
  // Opens and validates the folder's files, if the config names one.
  static absl::StatusOr<std::unique_ptr<Llama>> Create(const Config& config);

  // A folder's as DecoderModel does; given sizes with the key names of older
  // and newer transformers.
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override;

 private:
  explicit Llama(decoder::DecoderCheckpoint checkpoint)
      : DecoderModel(std::move(checkpoint)) {}
};

}  // namespace capstan::llama

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_
