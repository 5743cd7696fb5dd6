// SPDX-License-Identifier: Apache-2.0
//
// LLaDA (Nie et al., "Large Language Diffusion Models", 2025): a bidirectional
// Llama that predicts masked tokens.
#ifndef CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_H_
#define CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_H_

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/llada/llada.pb.h"
#include "plugins/model/llama/llama_model.h"

namespace capstan::llada {

// The names of LLaDAModelLM (GSAI-ML/LLaDA-8B-Base).
inline constexpr llama::LlamaNames kLladaNames = {
    "d_model",
    "mlp_hidden_size",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    nullptr,
    "max_sequence_length",
    "init_std",
    "model.transformer.wte",
    "model.transformer.blocks.",
    {"attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm",
     "ff_proj", "up_proj", "ff_out"},
    "model.transformer.ln_f",
    "model.transformer.ff_out",
};

// From the sizes in `config`, with defaults filled in. FieldError otherwise.
absl::StatusOr<llama::LlamaConfig> ConfigFromSizes(const Config& config);

// From a folder. An error names the file and the key. vocab_size is the number
// of rows of the embedding, which the folder calls embedding_size.
absl::StatusOr<llama::LlamaConfig> ConfigFromFolder(const std::string& folder);

// Writes config.json and generation_config.json for weights of `dtype`, with
// every key whose default in LLaDA's own code differs.
absl::Status WriteConfig(const llama::LlamaConfig& config,
                         const std::string& folder, c10::ScalarType dtype);

class Llada final : public llama::LlamaModel {
 public:
  // Opens and validates the folder's files, if the config names one.
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

}  // namespace capstan::llada

#endif  // CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_H_
