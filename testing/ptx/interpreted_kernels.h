// SPDX-License-Identifier: Apache-2.0
//
// The kernels of kernels/cuda as nvcc compiled them: their launchers' machine
// code of the host, which calls this library instead of CUDA's, and their PTX
// on the interpreter. The library defines testing/cuda/emulated_kernels.h, so
// that whatever runs on the emulator runs on the interpreter, too: link one of
// them. An error of a kernel is the launch's.
#ifndef CAPSTAN_TESTING_PTX_INTERPRETED_KERNELS_H_
#define CAPSTAN_TESTING_PTX_INTERPRETED_KERNELS_H_

#include "testing/ptx/interpreter.h"

namespace capstan::ptx {

// With all kernels, read from the .ptx files below kernels/cuda in the working
// directory. The first call has LibTorch allocate tensors of the CPU where
// kernels may go, with gaps between them; older tensors are out of bounds.
Interpreter& KernelInterpreter();

}  // namespace capstan::ptx

#endif  // CAPSTAN_TESTING_PTX_INTERPRETED_KERNELS_H_
