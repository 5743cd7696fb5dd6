// SPDX-License-Identifier: Apache-2.0
//
// Where operators do things differently on GPUs, which change the last bits:
// products that write float32 from 16-bit factors, and several layers as one
// product.
#ifndef CAPSTAN_KERNELS_LAYERS_GPU_PATH_H_
#define CAPSTAN_KERNELS_LAYERS_GPU_PATH_H_

#include <ATen/core/Tensor.h>

namespace capstan::kernels {

// Whether operators on x do so: x is on a GPU, or a test asks for it.
bool OnGpuPath(const at::Tensor& x);

// For tests: as long as one exists, all tensors take the path of GPUs, with
// ATen's operators on the CPU in place of cuBLAS and our kernels.
class GpuPathForTest {
 public:
  GpuPathForTest();
  ~GpuPathForTest();
  GpuPathForTest(const GpuPathForTest&) = delete;
  GpuPathForTest& operator=(const GpuPathForTest&) = delete;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_GPU_PATH_H_
