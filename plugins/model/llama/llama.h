// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/llama/llama_config.h"
#include "plugins/model/llama/llama_model.h"

namespace capstan {
namespace llama {

// LlamaForCausalLM.
class Llama final : public LlamaModel {
 public:
  // Opens and checks the folder's files, if the config names one.
  static absl::StatusOr<std::unique_ptr<Llama>> Create(const Config& config);

  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override;

 private:
  explicit Llama(LlamaCheckpoint checkpoint)
      : LlamaModel(std::move(checkpoint)) {}
};

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_H_
