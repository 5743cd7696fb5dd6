// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/ad_transformer/ad_transformer.pb.h"

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

}  // namespace ad_transformer
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_AD_TRANSFORMER_CONFIG_H_
