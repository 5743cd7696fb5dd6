// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/common/config_keys.h"

#include "base/json.h"

namespace capstan {

absl::optional<int64_t> ConfigKeys::Token(const char* key) {
  const ConfigJson* value = Find(key);
  if (value == nullptr) return absl::nullopt;
  if (value->is_array() && !value->empty()) value = &value->front();
  const absl::optional<int64_t> id = JsonInteger(*value);
  if (!id.has_value()) Fail(key, "must be a token id", *value);
  return id;
}

void ConfigKeys::RejectQuantized() {
  if (Find("quantization_config") == nullptr) return;
  Fail("quantization_config",
       "is not implemented, only weights that aren't quantized");
}

const char* DtypeName(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::BFloat16 ? "bfloat16"
         : dtype == c10::ScalarType::Half   ? "float16"
                                            : "float32";
}

}  // namespace capstan
