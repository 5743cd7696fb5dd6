// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_SIZES_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_SIZES_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"
#include "plugins/model/llama/llama_names.h"

namespace capstan {
namespace llama {

// What a Llama is. Names as in its Hugging Face config.json.
struct LlamaConfig {
  // Of its files; a constant.
  const LlamaNames* names = &kHuggingFaceNames;
  // Whether a token sees only those before it.
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

  // The texts of the folder's own config.json and generation_config.json,
  // whose other keys are kept when saving; empty for given sizes.
  std::string source_config;
  std::string source_generation_config;
};

// What is wrong with one key's value, by `names`.
struct ConfigProblem {
  std::string key;
  std::string text;
};

// Sets num_key_value_heads and head_dim where they are 0; then whether the
// sizes make a model, from whichever source.
absl::optional<ConfigProblem> FinishSizes(LlamaConfig* config);

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_SIZES_H_
