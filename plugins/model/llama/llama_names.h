// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_NAMES_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_NAMES_H_

#include <array>

namespace capstan {
namespace llama {

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

// What the files of a kind of model call the parts of a Llama.
struct LlamaNames {
  // Keys of config.json, which are the plugin's fields, too.
  const char* hidden_size;
  const char* intermediate_size;
  const char* num_hidden_layers;
  const char* num_attention_heads;
  const char* num_key_value_heads;
  const char* head_dim;  // null: heads are hidden_size over their number
  const char* max_position_embeddings;
  const char* initializer_range;

  // Tensors, without ".weight" at the end. A layer's are LAYERS + "N." + its
  // own name.
  const char* embedding;
  const char* layers;
  std::array<const char*, kLayerParameters> in_layer;
  const char* norm;
  const char* head;
};

// Those of transformers' LlamaForCausalLM.
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

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_NAMES_H_
