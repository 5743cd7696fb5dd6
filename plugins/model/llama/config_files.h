// SPDX-License-Identifier: Apache-2.0
//
// What is alike in the folders of Llama and its relatives.
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_CONFIG_FILES_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_CONFIG_FILES_H_

#include <c10/core/ScalarType.h>

#include <string>

#include "absl/status/status.h"
#include "plugins/model/common/config_keys.h"
#include "plugins/model/llama/llama_sizes.h"

namespace capstan {
namespace llama {

using Json = ConfigJson;

// Completes `config`, whose sizes `keys` has read from the folder's config.json
// with the text `source`: FinishSizes, and the texts to keep.
absl::Status FinishFromFolder(const std::string& folder, std::string source,
                              ConfigKeys& keys, LlamaConfig* config);

// The source config's keys, or none.
Json SourceKeys(const LlamaConfig& config);

// Puts the dtype of the weights and the token ids into `json`, and writes it to
// config.json and the ids to generation_config.json, too.
absl::Status WriteConfigFiles(const LlamaConfig& config, Json json,
                              const std::string& folder, c10::ScalarType dtype);

}  // namespace llama
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_CONFIG_FILES_H_
