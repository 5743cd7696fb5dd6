// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/gpu_path.h"

namespace capstan::kernels {

// Weak, so that a test can put another in its place (gpu_path_for_test.h).
__attribute__((weak)) bool OnGpuPath(const at::Tensor& x) {
  return x.is_cuda();
}

}  // namespace capstan::kernels
