// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTING_CUDA_EMULATED_KERNELS_H_
#define CAPSTAN_TESTING_CUDA_EMULATED_KERNELS_H_

#include "kernels/cuda/cuda_kernels.h"

namespace capstan::kernels::cuda {

// The kernels and launchers of the .cu files, run on the host by emulator.h, on
// tensors in host memory. Not reentrant; for tests.
const CudaKernels& EmulatedKernels();

// emulator::RunBackwards, for code that can't include that header.
void EmulateBackwards(bool backwards);

}  // namespace capstan::kernels::cuda

#endif  // CAPSTAN_TESTING_CUDA_EMULATED_KERNELS_H_
