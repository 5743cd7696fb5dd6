// SPDX-License-Identifier: Apache-2.0
//
// Where operators do things differently on GPUs, which change the last bits:
// products that write float32 from 16-bit factors, and several layers as one
// product.
#ifndef CAPSTAN_KERNELS_LAYERS_GPU_PATH_H_
#define CAPSTAN_KERNELS_LAYERS_GPU_PATH_H_

#include <ATen/core/Tensor.h>

namespace capstan::kernels {

// Whether operators on x do so.
bool OnGpuPath(const at::Tensor& x);

// Whether LibTorch groups products on a compute capability (90 is 9.0) without
// asking the host where groups end (GroupedBlas.cpp).
inline bool GroupsProducts(int capability) {
  return capability / 10 == 9 || capability / 10 == 10;
}

// Whether at::_grouped_mm multiplies matrices like x without asking the host
// where groups end: bfloat16, where GroupsProducts.
bool HasGroupedProducts(const at::Tensor& x);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_GPU_PATH_H_
