// SPDX-License-Identifier: Apache-2.0
//
// LLaDA (Nie et al., "Large Language Diffusion Models", 2025): a bidirectional
// Llama that predicts masked tokens.
#ifndef CAPSTAN_PLUGINS_LLADA_MODEL_LLADA_H_
#define CAPSTAN_PLUGINS_LLADA_MODEL_LLADA_H_

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/llada/model/llada.pb.h"
#include "plugins/model/decoder/decoder_model.h"

namespace capstan::llada {

class Llada final : public decoder::DecoderModel {
 public:
  // Opens and validates the folder's files, if the config names one.
  static absl::StatusOr<std::unique_ptr<Llada>> Create(const Config& config);

  // With every key whose default in LLaDA's own code differs.
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override;
  std::string sampling_objective() const override {
    return "capstan.masked_diffusion";
  }

 private:
  explicit Llada(decoder::DecoderCheckpoint checkpoint)
      : DecoderModel(std::move(checkpoint)) {}
};

}  // namespace capstan::llada

#endif  // CAPSTAN_PLUGINS_LLADA_MODEL_LLADA_H_
