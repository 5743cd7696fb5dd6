// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_WEIGHTS_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plugins/model/llama/llama_config.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/safetensors.h"

namespace capstan {
namespace llama {

// Parameters in the order of first use: the embedding, kLayerParameters for
// each layer, the last norm and, unless tied, the head.
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

// Units: "embed", "layers.N" ..., "head".
std::vector<std::string> UnitNames(const LlamaConfig& config);
std::vector<ParameterSpec> ParameterSpecs(const LlamaConfig& config);

// "[2, 3]", for errors.
std::string ShapeText(const std::vector<int64_t>& shape);

// Whether `weights` holds just the parameters, in their shapes and in a dtype
// that can be read. The error names tensor, file and shapes. A tied checkpoint
// may hold lm_head.weight too, which isn't used.
absl::Status CheckWeights(const std::vector<ParameterSpec>& specs,
                          const SafetensorsReader& weights,
                          const std::string& folder);

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_WEIGHTS_H_
