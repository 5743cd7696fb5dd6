// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_SQUARED_SUM_H_
#define CAPSTAN_STRATEGIES_COMMON_SQUARED_SUM_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace capstan {

// The sum of squares of elements [begin, end) of a flat gradient, summed in
// double precision: float32 squares of gradients under a loss scale overflow.
// Non-finite if an element is. Deterministic for a given slice. A float64
// scalar on flat's device.
at::Tensor SquaredSum(const at::Tensor& flat, int64_t begin, int64_t end);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_SQUARED_SUM_H_
