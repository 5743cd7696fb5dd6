// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_VIEW_OF_H_
#define CAPSTAN_KERNELS_VIEW_OF_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>

#include "kernels/fast_path.h"

namespace capstan::kernels {

// [rows, width] over existing memory that outlives it.
template <typename T>
at::Tensor ViewOf(const T* data, int64_t rows, int64_t width) {
  return at::from_blob(const_cast<T*>(data), {rows, width}, StorageType<T>());
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_VIEW_OF_H_
