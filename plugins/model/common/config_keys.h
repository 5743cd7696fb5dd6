// SPDX-License-Identifier: Apache-2.0
//
// The keys of a model's config.json.
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_KEYS_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_KEYS_H_

#include <c10/core/ScalarType.h>

#include "base/json.h"

namespace capstan {

using ConfigJson = JsonKeys::Json;

class ConfigKeys : public JsonKeys {
 public:
  using JsonKeys::JsonKeys;

  // A token id; of a list, the first.
  absl::optional<int64_t> Token(const char* key);
  // Fails if the weights are quantized.
  void RejectQuantized();
};

// The weights' dtype as config.json calls it: "bfloat16", "float16", "float32".
const char* DtypeName(c10::ScalarType dtype);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_KEYS_H_
