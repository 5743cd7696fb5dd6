// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/llama/llama.pb.h"
#include "plugins/model/llama/llama_sizes.h"

namespace capstan {
namespace llama {

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
