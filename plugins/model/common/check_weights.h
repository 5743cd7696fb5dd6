// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_CHECK_WEIGHTS_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_CHECK_WEIGHTS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"

namespace capstan {

// "[2, 3]", for errors.
std::string ShapeText(const std::vector<int64_t>& shape);

// Whether `weights` of `folder` holds just the parameters, in their shapes and
// in a dtype that can be read, but for tensors that `unused` knows by name
// (null: none). The error names tensor, file and shapes.
absl::Status CheckWeights(
    const std::vector<ParameterSpec>& specs, const SafetensorsReader& weights,
    const std::string& folder,
    const std::function<bool(absl::string_view name)>& unused = nullptr);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_CHECK_WEIGHTS_H_
