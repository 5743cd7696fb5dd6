// SPDX-License-Identifier: Apache-2.0
//
// The sizes of a model, in and out of files, and its parameters: their names as
// in the original's state dict, their order, and what they are at first.
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

// The model's sizes, with nothing left to default.
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

  // Numbers that describe a transition: state, one-hot action, reward, next
  // state.
  int64_t features() const { return actions + 5; }
};

constexpr int64_t kTokenTypes = 3;

// From the config's sizes; errors name its field.
absl::StatusOr<Sizes> SizesOf(const Config& config);

// FOLDER/config.json, in and out.
absl::StatusOr<Sizes> ReadSizes(const std::string& folder);
absl::Status WriteSizes(const Sizes& sizes, const std::string& folder,
                        c10::ScalarType dtype);

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

std::vector<ParameterSpec> ParameterSpecs(const Sizes& sizes);

// Random as the modules of PyTorch have it that the original is made of, but
// each layer by itself (torch.nn.TransformerEncoder copies one layer's).
void RandomValue(const Sizes& sizes, int index, const ParameterSpec& spec,
                 uint64_t seed, int64_t begin, int64_t count, float* out);

}  // namespace ad_transformer
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_SIZES_H_
