// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/llada/llada.pb.h"
#include "plugins/model/llama/llama_names.h"
#include "plugins/model/llama/llama_sizes.h"

namespace capstan {
namespace llada {

// Those of LLaDAModelLM (GSAI-ML/LLaDA-8B-Base).
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

// From a folder. An error names the file and the key. Its vocab_size is the
// number of rows of the embedding, which the folder calls embedding_size.
absl::StatusOr<llama::LlamaConfig> ConfigFromFolder(const std::string& folder);

// Writes config.json and generation_config.json, for weights of `dtype`, with
// every key that LLaDA's own code has another default for.
absl::Status WriteConfig(const llama::LlamaConfig& config,
                         const std::string& folder, c10::ScalarType dtype);

}  // namespace llada
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLADA_LLADA_CONFIG_H_
