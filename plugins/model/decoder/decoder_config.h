// SPDX-License-Identifier: Apache-2.0
//
// The description of a decoder: what a family's config.json says, in terms of
// what DecoderModel computes.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CONFIG_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "kernels/layers/block_parts.h"
#include "plugins/model/common/config.h"
#include "plugins/model/decoder/rope.h"
#include "plugins/sdk/model.h"

namespace capstan::decoder {

struct Family;

// A layer's modules with parameters, in the order of first use.
enum LayerModule {
  kInputNorm,
  kQuery,  // or queries, keys and values in one matrix
  kKey,
  kValue,
  kQueryNorm,
  kKeyNorm,
  kOutput,
  kAttentionPostNorm,  // of attention's output, before the residual sum
  kMlpNorm,
  kRouter,
  kGate,  // or gate and up in one matrix
  kUp,
  kDown,
  kMlpPostNorm,
  kLayerModules,
};

// Those with a matrix that is a linear layer's, in the order of
// kernels::BlockMatrix.
inline constexpr LayerModule kBlockModules[kernels::kBlockMatrices] = {
    kQuery, kKey, kValue, kOutput, kGate, kUp, kDown};

// The names of a decoder's parts in the files of a kind of model.
struct DecoderNames {
  // Keys of config.json, which are also the plugin's fields.
  const char* hidden_size;
  const char* intermediate_size;
  const char* num_hidden_layers;
  const char* num_attention_heads;
  const char* num_key_value_heads;
  const char* head_dim;  // null: heads are hidden_size over their number
  const char* max_position_embeddings;
  const char* initializer_range;

  // Module names; a parameter's has ".weight" or ".bias" behind. A layer's are
  // LAYERS + "N." + its own name; null for what no such model has.
  const char* embedding;
  const char* layers;
  std::array<const char*, kLayerModules> in_layer;
  const char* norm;
  const char* head;
  // Between the layer's and an expert's number, whose kGate, kUp and kDown
  // follow.
  const char* experts = "mlp.experts.";
  std::array<const char*, 3> in_expert = {"gate_proj", "up_proj", "down_proj"};
};

// The names of transformers' LlamaForCausalLM and most others.
inline constexpr DecoderNames kHuggingFaceNames = {
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
     "self_attn.v_proj", "self_attn.q_norm", "self_attn.k_norm",
     "self_attn.o_proj", nullptr, "post_attention_layernorm", "mlp.gate",
     "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", nullptr},
    "model.norm",
    "lm_head",
};

// The same with other names for some modules.
constexpr DecoderNames HuggingFaceNamesWith(
    std::initializer_list<std::pair<LayerModule, const char*>> others) {
  DecoderNames names = kHuggingFaceNames;
  for (const auto& [module, name] : others) names.in_layer[module] = name;
  return names;
}

// What differs from layer to layer.
struct LayerKind {
  // How many positions a token sees, its own included; 0: all up to its own.
  int64_t window = 0;
  int rope = 0;          // which of DecoderConfig::ropes; -1: none
  bool experts = false;  // a mixture of experts in place of one MLP
};

struct Experts {
  int64_t count = 0;   // 0: the model has none
  int64_t chosen = 0;  // for each token
  int64_t intermediate_size = 0;
  bool normalise = false;  // so that the weights of the chosen sum up to 1
  // Of the auxiliary loss that balances their load; 0: none.
  double loss_coefficient = 0.0;
};

// A decoder's config. Names as in Llama's config.json where it has them.
struct DecoderConfig {
  // Constants. The family that config.json is read and written as; null: the
  // plugin's own.
  const Family* family = nullptr;
  const DecoderNames* names = &kHuggingFaceNames;
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
  // With defaults of transformers that most families have.
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  // The head is a score of a text, "score" [1, hidden_size] as transformers'
  // sequence classification of one label has it, and not tied.
  bool scores = false;
  bool new_scores = false;          // and no file has it
  double initializer_range = 0.02;  // most families', too
  absl::optional<int64_t> bos_token_id;
  absl::optional<int64_t> eos_token_id;
  std::vector<int64_t> other_eos_token_ids;  // generation_config.json's, too
  absl::optional<int64_t> pad_token_id;
  absl::optional<int64_t> mask_token_id;

  // Norms: before attention and MLP, or of their outputs, or both; x_hat * (1 +
  // weight) in place of x_hat * weight.
  bool norm_before = true;
  bool norm_after = false;
  bool norm_plus_one = false;
  // Of queries and keys, before rope: of each head or of all together.
  kernels::QueryKeyNorm query_key_norm = kernels::QueryKeyNorm::kNone;

  // Biases of queries, keys and values; of attention's output; of the MLP.
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  // One matrix for queries, keys and values, and one for gate and up.
  bool fused = false;
  kernels::Activation activation = kernels::Activation::kSilu;

  double embedding_scale = 1.0;    // of the embedding's rows
  double attention_scale = 0.0;    // of scores; 0: 1 / sqrt(head_dim)
  double attention_softcap = 0.0;  // cap * tanh(score / cap); 0: none
  double logit_softcap = 0.0;
  std::vector<Rope> ropes = {Rope()};
  // One a layer; empty: all are LayerKind().
  std::vector<LayerKind> layer_kinds;
  Experts experts;

  // Tensors of a folder that belong to other parts of the model, by the start
  // of their names.
  std::vector<std::string> other_parts;
  // The starts of names that differ in the folder's files, and what they may be
  // there.
  std::vector<std::pair<std::string, std::vector<std::string>>> file_names;

  // The text of the folder's own config.json (of its text part) and
  // generation_config.json, whose other keys are kept when saving; empty for
  // given sizes.
  std::string source_config;
  std::string source_generation_config;

  const char* head() const { return scores ? "score" : names->head; }

  LayerKind layer(int64_t i) const {
    return layer_kinds.empty() ? LayerKind() : layer_kinds[i];
  }
};

// Replaces the head of logits, if it has one, by a new one of scores.
void AddScoreHead(DecoderConfig* config);

// Sets num_key_value_heads and head_dim if 0, then validates the sizes. A
// FieldError names the key.
absl::Status FinishSizes(DecoderConfig* config);

// The embedding's index.
constexpr int kEmbedding = 0;

// The parameters and units of a decoder. Parameters are in the order of first
// use: the embedding, each layer's modules, the last norm and, unless tied, the
// head; on GPUs (CurrentRunDevice) the biases of matrices with one input follow
// all of these. A unit is the embedding, a layer, or the head with the last
// norm; but a layer's experts, with norms and router, are a unit of their own.
struct DecoderLayout {
  explicit DecoderLayout(const DecoderConfig& config);

  struct Layer {
    // Indices of weights and biases by LayerModule; -1: none.
    std::array<int, kLayerModules> weight;
    std::array<int, kLayerModules> bias;
    // Of each expert's gate, up and down.
    std::vector<std::array<int, 3>> experts;
    int unit = 0;
    int mlp_unit = 0;  // differs from `unit` if the layer has experts
  };

  std::vector<ParameterSpec> specs;
  std::vector<std::string> units;
  std::vector<Layer> layers;
  int norm = 0;
  int head = 0;  // the embedding's, if tied
};

inline std::vector<ParameterSpec> ParameterSpecs(const DecoderConfig& config) {
  return DecoderLayout(config).specs;
}

// Whether the model ignores this tensor of a checkpoint: the head of a tied
// one, other parts, and constants saved by old versions of transformers.
bool IsUnused(const DecoderConfig& config, absl::string_view name);

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_CONFIG_H_
