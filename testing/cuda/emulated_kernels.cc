// SPDX-License-Identifier: Apache-2.0
#include "testing/cuda/emulated_kernels.h"

// clang-format off
#include "testing/cuda/emulator.h"  // in nvcc's place, before the kernels
// clang-format on

#include "kernels/cuda/cuda_kernels_hash.h"
#include "kernels/cuda/elementwise.cu"
#include "kernels/cuda/experts.cu"
#include "kernels/cuda/fp8.cu"
#include "kernels/cuda/optimizer.cu"
#include "kernels/cuda/quant.cu"
#include "kernels/cuda/rms_norm.cu"
#include "kernels/cuda/tokens.cu"

namespace capstan::kernels::cuda {

const CudaKernels& EmulatedKernels() {
  static const CudaKernels kernels = MakeTable(
      CAPSTAN_CUDA_KERNELS_HASH, [](int) { return 90; },
      [](int) -> void* { return nullptr; });
  return kernels;
}

void EmulateBackwards(bool backwards) { emulator::RunBackwards(backwards); }

}  // namespace capstan::kernels::cuda
