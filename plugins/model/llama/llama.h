// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/llama/llama.pb.h"
#include "plugins/model/llama/llama_model.h"

namespace capstan::llama {

// From a Hugging Face folder. An error names the file and the key.
absl::StatusOr<LlamaConfig> ConfigFromFolder(const std::string& folder);

// LlamaForCausalLM.
class Llama final : public LlamaModel {
 public:
  // Opens and validates the folder's files, if the config names one.
  static absl::StatusOr<std::unique_ptr<Llama>> Create(const Config& config);

  // With the key names of older and newer transformers.
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override;

 private:
  explicit Llama(LlamaCheckpoint checkpoint)
      : LlamaModel(std::move(checkpoint)) {}
};

}  // namespace capstan::llama

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_
