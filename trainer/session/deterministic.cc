// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/deterministic.h"

#include <ATen/Context.h>
#include <stdlib.h>

namespace capstan {

void ComputeDeterministically() {
  // Read when cuBLAS creates its first handle (CUDA's documentation, "cuBLAS,
  // results reproducibility").
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  // Has MKL's products round the same way on any number of threads and at any
  // address (oneMKL Developer Guide, "Reproducibility Conditions"); read at
  // MKL's first call.
  setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  // Only told to warn, flash and memory-efficient attention still add up
  // gradients by atomic operations.
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  // The gradients of cuDNN's attention always are.
  context.setSDPUseCuDNN(false);
  context.setDeterministicCuDNN(true);
  // It chooses algorithms by their speed in this run.
  context.setBenchmarkCuDNN(false);
  // Otherwise all new memory would be filled with NaN, which costs a pass over
  // it; nothing of ours reads what it hasn't written.
  context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace capstan
