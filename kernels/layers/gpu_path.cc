// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/gpu_path.h"

#include "kernels/cuda/dispatch.h"

namespace capstan::kernels {

// Weak, so that a test can put another in its place (gpu_path_for_test.h).
__attribute__((weak)) bool OnGpuPath(const at::Tensor& x) {
  return x.is_cuda();
}

__attribute__((weak)) bool HasGroupedProducts(const at::Tensor& x) {
  const auto* cuda = cuda::For(x);
  return cuda != nullptr && x.scalar_type() == at::kBFloat16 &&
         GroupsProducts(cuda->capability(x.get_device()));
}

}  // namespace capstan::kernels
