// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_FAST_PATH_H_
#define CAPSTAN_KERNELS_FAST_PATH_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace capstan {
namespace kernels {

// Whether the loops of simd.h serve this tensor. Others (GPUs, half types)
// take the same formulas from ATen's operators.
inline bool FastPath(const at::Tensor& t) {
  return t.device().is_cpu() && t.scalar_type() == at::kFloat;
}

// The least number of rows of `width` floats that is worth a thread.
inline int64_t RowGrain(int64_t width) {
  constexpr int64_t kFloatsPerThread = 32768;
  return std::max<int64_t>(1, kFloatsPerThread / std::max<int64_t>(width, 1));
}

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_FAST_PATH_H_
