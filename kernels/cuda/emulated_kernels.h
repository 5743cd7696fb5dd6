// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CUDA_EMULATED_KERNELS_H_
#define CAPSTAN_KERNELS_CUDA_EMULATED_KERNELS_H_

#include "kernels/cuda/cuda_kernels.h"

namespace capstan {
namespace kernels {
namespace cuda {

// The kernels and launchers of the .cu files, run by emulator.h on the host,
// on tensors in its memory. Not reentrant; for tests.
const CudaKernels& EmulatedKernels();

// emulator::RunBackwards, for those who can't include that header.
void EmulateBackwards(bool backwards);

}  // namespace cuda
}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CUDA_EMULATED_KERNELS_H_
