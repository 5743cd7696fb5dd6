// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/model/llada_scratch/llada_scratch.pb.h"

namespace capstan {
namespace llada_scratch {

// The sizes in `config`, with defaults for every field but `pretrained`
// (special tokens other than the mask may stay unset). FieldError otherwise.
absl::StatusOr<Config> Sizes(const Config& config);

// The same from a folder's config.json. An error names the file and the key.
absl::StatusOr<Config> SizesFromFolder(const std::string& folder);

// Writes config.json for weights of `dtype`.
absl::Status WriteConfig(const Config& sizes, const std::string& folder,
                         c10::ScalarType dtype);

}  // namespace llada_scratch
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_LLADA_SCRATCH_SCRATCH_CONFIG_H_
