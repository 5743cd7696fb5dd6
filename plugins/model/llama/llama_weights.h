// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_WEIGHTS_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "plugins/model/llama/llama_sizes.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace llama {

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

// Units: "embed", "layers.N" ..., "head".
std::vector<std::string> UnitNames(const LlamaConfig& config);
std::vector<ParameterSpec> ParameterSpecs(const LlamaConfig& config);

// A tensor of a checkpoint that the model doesn't use: the head's of a tied
// one, and constants that old versions of transformers saved.
bool IsUnused(const LlamaConfig& config, absl::string_view name);

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_WEIGHTS_H_
