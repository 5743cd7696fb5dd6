// SPDX-License-Identifier: Apache-2.0
//
// Parsing of safetensors' JSON, for the reader: pure functions of bytes.
#ifndef CAPSTAN_PLUGINS_SDK_LIB_SAFETENSORS_HEADER_H_
#define CAPSTAN_PLUGINS_SDK_LIB_SAFETENSORS_HEADER_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {

// The contents of one file; entries point into its bytes.
struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// `bytes`: a whole file. Errors name the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view bytes);

// Maps tensor names to shard files. `bytes`: a model.safetensors.index.json.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(
    absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_SAFETENSORS_HEADER_H_
