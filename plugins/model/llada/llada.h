// SPDX-License-Identifier: Apache-2.0
//
// LLaDA (Nie et al., "Large Language Diffusion Models", 2025): a Llama whose
// tokens see the whole text, and which finds those that a mask hides.
#ifndef CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_H_
#define CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/llada/llada_config.h"
#include "plugins/model/llama/llama_model.h"

namespace capstan {
namespace llada {

class Llada final : public llama::LlamaModel {
 public:
  // Opens and checks the folder's files, if the config names one.
  static absl::StatusOr<std::unique_ptr<Llada>> Create(const Config& config);

  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override;
  std::string sampling_objective() const override {
    return "capstan.masked_diffusion";
  }

 private:
  explicit Llada(llama::LlamaCheckpoint checkpoint)
      : LlamaModel(std::move(checkpoint)) {}
};

}  // namespace llada
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_H_
