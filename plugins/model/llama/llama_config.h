// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/model/llama/llama.pb.h"

namespace capstan {
namespace llama {

// What a Llama is. Names as in Hugging Face's config.json.
struct LlamaConfig {
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

  // The texts of the folder's own config.json and generation_config.json,
  // whose other keys are kept when saving; empty for given sizes.
  std::string source_config;
  std::string source_generation_config;
};

// From the sizes in `config`, with defaults filled in. FieldError otherwise.
absl::StatusOr<LlamaConfig> ConfigFromSizes(const Config& config);

// From a Hugging Face folder. An error names the file and the key.
absl::StatusOr<LlamaConfig> ConfigFromFolder(const std::string& folder);

// Writes config.json and generation_config.json, for weights of `dtype`, as
// transformers reads them (its older and its newer key names).
absl::Status WriteConfig(const LlamaConfig& config, const std::string& folder,
                         c10::ScalarType dtype);

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_CONFIG_H_
