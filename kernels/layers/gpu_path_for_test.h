// SPDX-License-Identifier: Apache-2.0
//
// Takes the place of gpu_path.cc in a test's program. Only its one source may
// include it.
#ifndef CAPSTAN_KERNELS_LAYERS_GPU_PATH_FOR_TEST_H_
#define CAPSTAN_KERNELS_LAYERS_GPU_PATH_FOR_TEST_H_

#include <ATen/core/Tensor.h>

#include <atomic>

#include "kernels/layers/gpu_path.h"

namespace capstan::kernels {

// As long as one exists, all tensors take the path of GPUs, with ATen's
// operators on the CPU in place of cuBLAS and our kernels.
class GpuPathForTest {
 public:
  GpuPathForTest() { ++count(); }
  ~GpuPathForTest() { --count(); }
  GpuPathForTest(const GpuPathForTest&) = delete;
  GpuPathForTest& operator=(const GpuPathForTest&) = delete;
  static std::atomic<int>& count() {
    static std::atomic<int> count{0};
    return count;
  }
};

// Not inline: the linker prefers it to gpu_path.cc's, which is weak.
bool OnGpuPath(const at::Tensor& x) {
  return x.is_cuda() || GpuPathForTest::count() > 0;
}
bool HasGroupedProducts(const at::Tensor& /*x*/) {
  return GpuPathForTest::count() > 0;
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_GPU_PATH_FOR_TEST_H_
