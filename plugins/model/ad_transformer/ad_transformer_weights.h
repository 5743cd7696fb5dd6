// SPDX-License-Identifier: Apache-2.0
//
// The parameters: their names as in the original's state dict, their order,
// and what they are at first.
#ifndef CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_WEIGHTS_H_
#define CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_WEIGHTS_H_

#include <string>
#include <vector>

#include "kernels/encoder/encoder_block.h"
#include "plugins/model/ad_transformer/ad_transformer_config.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace ad_transformer {

// Indices of the first unit's parameters; the last three are there only if
// `compressed`.
enum EmbeddingParameter {
  kPositions,      // [1, n_transit, E]
  kContextWeight,  // [E, features]
  kContextBias,    // [E]
  kQueryStates,    // [grid * grid, E]
  kTokenTypeRows,  // [3, E]
  kStartToken,     // [1, 1, E]
  kEndToken,       // [1, 1, E]
};

// The number of the first unit's parameters, and so the index of layer 0's.
int EmbeddingParameters(const Sizes& sizes);
inline int LayerIndex(const Sizes& sizes, int64_t layer) {
  return EmbeddingParameters(sizes) +
         static_cast<int>(layer) * kernels::kEncoderWeights;
}
// Of pred_action.weight and .bias, and (compressed) pred_token_type's.
inline int HeadIndex(const Sizes& sizes) {
  return LayerIndex(sizes, sizes.layers);
}

std::vector<std::string> UnitNames(const Sizes& sizes);
std::vector<ParameterSpec> ParameterSpecs(const Sizes& sizes);

// Random as the modules of PyTorch have it that the original is made of, but
// each layer by itself (torch.nn.TransformerEncoder copies one layer's).
void RandomValue(const Sizes& sizes, int index, const ParameterSpec& spec,
                 uint64_t seed, int64_t begin, int64_t count, float* out);

}  // namespace ad_transformer
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_WEIGHTS_H_
