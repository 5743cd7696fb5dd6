// SPDX-License-Identifier: Apache-2.0
//
// A model's sizes, their reading and writing, and its parameters: names as in
// the original's state dict, order and initial values.
#ifndef CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_SIZES_H_
#define CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_SIZES_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/encoder/encoder_block.h"
#include "plugins/model/ad_transformer/ad_transformer.pb.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace ad_transformer {

// The model's sizes, with all defaults filled in.
struct Sizes {
  int64_t embedding = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t feed_forward = 0;
  int64_t n_transit = 0;
  int64_t grid = 9;
  int64_t actions = 5;
  bool compressed = false;
  double dropout = 0.1;

  // Numbers per transition: state, one-hot action, reward, next state.
  int64_t features() const { return actions + 5; }
};

constexpr int64_t kTokenTypes = 3;

// From the config's sizes; errors name the field.
absl::StatusOr<Sizes> SizesOf(const Config& config);

// Reads (writes) FOLDER/config.json.
absl::StatusOr<Sizes> ReadSizes(const std::string& folder);
absl::Status WriteSizes(const Sizes& sizes, const std::string& folder,
                        c10::ScalarType dtype);

// Indices of the first unit's parameters; the last three exist only if
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

// The number of the first unit's parameters, i.e. the index of layer 0's first.
int EmbeddingParameters(const Sizes& sizes);
inline int LayerIndex(const Sizes& sizes, int64_t layer) {
  return EmbeddingParameters(sizes) +
         static_cast<int>(layer) * kernels::kEncoderWeights;
}
// The index of pred_action.weight and .bias, and (compressed)
// pred_token_type's.
inline int HeadIndex(const Sizes& sizes) {
  return LayerIndex(sizes, sizes.layers);
}

std::vector<ParameterSpec> ParameterSpecs(const Sizes& sizes);

// Random as in the PyTorch modules of the original, but independent per layer
// (torch.nn.TransformerEncoder copies one layer).
void RandomValue(const Sizes& sizes, int index, const ParameterSpec& spec,
                 uint64_t seed, int64_t begin, int64_t count, float* out);

}  // namespace ad_transformer
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_SIZES_H_
