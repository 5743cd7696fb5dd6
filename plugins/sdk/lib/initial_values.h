// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_LIB_INITIAL_VALUES_H_
#define CAPSTAN_PLUGINS_SDK_LIB_INITIAL_VALUES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"

namespace capstan {

// Writes the model's initial values of `ranges` to their offsets in `flat`
// (1-D, of any floating dtype and device), and of packed parameters the bytes.
// Reads no others. An error names the parameter.
absl::Status FillInitialValues(const Model& model, uint64_t seed,
                               const std::vector<ParameterRange>& ranges,
                               const at::Tensor& flat);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_INITIAL_VALUES_H_
