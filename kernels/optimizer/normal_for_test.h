// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_OPTIMIZER_NORMAL_FOR_TEST_H_
#define CAPSTAN_KERNELS_OPTIMIZER_NORMAL_FOR_TEST_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "base/random.h"

namespace capstan::kernels {

// Normal numbers of mean 0, [length] float32, the same for a key.
inline at::Tensor Normal(uint64_t key, int64_t length, float stddev) {
  const at::Tensor t = at::empty({length});
  FillNormal(key, 0, length, 0.0f, stddev, t.mutable_data_ptr<float>());
  return t;
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_NORMAL_FOR_TEST_H_
