// SPDX-License-Identifier: Apache-2.0
//
// Models made of an embedding, layers and a head.
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_UNITS_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_UNITS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/memory.h"
#include "plugins/sdk/model.h"

namespace capstan {

// "embed", "layers.N" ..., "head".
std::vector<std::string> UnitNames(int64_t layers);

// Elements [begin, begin + count) of a new parameter: biases are 0, norms 1,
// matrices normal with standard deviation `deviation`.
void FillInitial(const ParameterSpec& spec, uint64_t seed, double deviation,
                 int64_t begin, int64_t count, float* out);

// CHECKs that the bound tensors have the parameters' shapes.
void CheckBound(const std::vector<at::Tensor>& tensors,
                const std::vector<ParameterSpec>& specs);

// Bytes of the largest gradient of a unit's parameters in `compute`.
int64_t LargestGradient(const std::vector<ParameterSpec>& specs, int unit,
                        c10::ScalarType compute);

// Converts `memory` for unit `unit`, whose output has `output` bytes.
UnitMemory PlanUnit(const kernels::OperatorMemory& memory, int64_t output,
                    const std::vector<ParameterSpec>& specs, int unit,
                    c10::ScalarType compute);

// NewCache's error for a model that isn't causal.
absl::Status NoCacheError();

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_UNITS_H_
