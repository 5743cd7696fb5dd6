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

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_GPU_PATH_H_
