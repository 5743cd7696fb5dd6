// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_FAST_PATH_H_
#define CAPSTAN_KERNELS_FAST_PATH_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/simd/simd.h"

namespace capstan::kernels {

// Whether the float32 loops of base/simd can process this tensor. For others,
// operators use the same formulas on ATen's operators.
inline bool FastPath(const at::Tensor& t) {
  return t.device().is_cpu() && t.scalar_type() == at::kFloat;
}

// Whether RowKernels support this tensor, whose storage type WithStorage names.
inline bool HasRowKernels(const at::Tensor& t) {
  const at::ScalarType type = t.scalar_type();
  return t.device().is_cpu() && t.is_contiguous() &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

// Calls body with a value of the RowKernels' type for `type`.
template <typename Body>
void WithStorage(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kFloat:
      return body(float());
    case at::kBFloat16:
      return body(Bf16());
    default:
      TORCH_INTERNAL_ASSERT(type == at::kHalf);
      return body(Fp16());
  }
}

// The other way round: the dtype of float, Bf16 or Fp16 in memory.
template <typename T>
constexpr at::ScalarType StorageType() {
  return std::is_same_v<T, float>  ? at::kFloat
         : std::is_same_v<T, Bf16> ? at::kBFloat16
                                   : at::kHalf;
}

// The tensor's data as that type; null if the tensor is undefined.
template <typename T>
const T* ReadAs(const at::Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}
template <typename T>
T* WriteAs(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

// The data of a float32 tensor; throws for other dtypes.
inline float* Data(const at::Tensor& t) { return t.mutable_data_ptr<float>(); }
inline const float* ConstData(const at::Tensor& t) {
  return t.const_data_ptr<float>();
}

// The fewest rows of `width` numbers worth a thread.
inline int64_t RowGrain(int64_t width) {
  constexpr int64_t kPerThread = 32768;
  return std::max<int64_t>(1, kPerThread / std::max<int64_t>(width, 1));
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_FAST_PATH_H_
