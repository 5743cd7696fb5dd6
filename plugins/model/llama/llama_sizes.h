// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_SIZES_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_SIZES_H_

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "plugins/model/common/config.h"
#include "plugins/sdk/model.h"

namespace capstan::llama {

// A layer's parameters, in the order of first use.
enum LayerParameter {
  kInputNorm,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kPostNorm,
  kGate,
  kUp,
  kDown,
  kLayerParameters,
};

// The names of a Llama's parts in the files of a kind of model.
struct LlamaNames {
  // Keys of config.json, which are also the plugin's fields.
  const char* hidden_size;
  const char* intermediate_size;
  const char* num_hidden_layers;
  const char* num_attention_heads;
  const char* num_key_value_heads;
  const char* head_dim;  // null: heads are hidden_size over their number
  const char* max_position_embeddings;
  const char* initializer_range;

  // Tensor names without ".weight" at the end. A layer's are LAYERS + "N." +
  // its own name.
  const char* embedding;
  const char* layers;
  std::array<const char*, kLayerParameters> in_layer;
  const char* norm;
  const char* head;
};

// The names of transformers' LlamaForCausalLM.
inline constexpr LlamaNames kHuggingFaceNames = {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "initializer_range",
    "model.embed_tokens",
    "model.layers.",
    {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj",
     "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
     "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
    "model.norm",
    "lm_head",
};

// A Llama's config. Names as in its Hugging Face config.json.
struct LlamaConfig {
  // Names in its files; a constant.
  const LlamaNames* names = &kHuggingFaceNames;
  // Whether a token sees only itself and those before it.
  bool causal = true;

  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0.0;
  double rope_theta = 0.0;
  bool tie_word_embeddings = true;
  double initializer_range = 0.0;
  absl::optional<int64_t> bos_token_id;
  absl::optional<int64_t> eos_token_id;
  absl::optional<int64_t> pad_token_id;
  absl::optional<int64_t> mask_token_id;

  // The text of the folder's own config.json and generation_config.json, whose
  // other keys are kept when saving; empty for given sizes.
  std::string source_config;
  std::string source_generation_config;
};

// Sets num_key_value_heads and head_dim if 0, then validates the sizes. A
// FieldError names the key.
absl::Status FinishSizes(LlamaConfig* config);

// Parameters in the order of first use: the embedding, kLayerParameters for
// each layer, the last norm and, unless tied, the head.
constexpr int kEmbedding = 0;
inline int LayerIndex(int layer, LayerParameter parameter) {
  return 1 + layer * kLayerParameters + parameter;
}
inline int NormIndex(const LlamaConfig& config) {
  return LayerIndex(static_cast<int>(config.num_hidden_layers), kInputNorm);
}
// The embedding's, if tied.
inline int HeadIndex(const LlamaConfig& config) {
  return config.tie_word_embeddings ? kEmbedding : NormIndex(config) + 1;
}

std::vector<ParameterSpec> ParameterSpecs(const LlamaConfig& config);

// Whether the model ignores this tensor of a checkpoint: the head of a tied
// one, and constants saved by old versions of transformers.
bool IsUnused(const LlamaConfig& config, absl::string_view name);

using Json = ConfigJson;

// Reads the sizes in a folder's config.json with `read`, applies FinishSizes,
// and keeps the texts. An error names the file and the key.
absl::StatusOr<LlamaConfig> ReadFolder(const std::string& folder,
                                       void (*read)(ConfigKeys& keys,
                                                    LlamaConfig* c));

// The source config's keys, or none.
Json SourceKeys(const LlamaConfig& config);

// Adds the dtype of the weights and the token ids to `json`, and writes it to
// config.json, and the ids also to generation_config.json.
absl::Status WriteConfigFiles(const LlamaConfig& config, Json json,
                              const std::string& folder, c10::ScalarType dtype);

}  // namespace capstan::llama

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_SIZES_H_
