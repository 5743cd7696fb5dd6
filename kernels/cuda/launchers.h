// SPDX-License-Identifier: Apache-2.0
//
// The launchers defined by the .cu files, and their table.
#ifndef CAPSTAN_KERNELS_CUDA_LAUNCHERS_H_
#define CAPSTAN_KERNELS_CUDA_LAUNCHERS_H_

#include "kernels/cuda/cuda_kernels.h"

namespace capstan::kernels::cuda {

const char* LaunchRmsNorm(const RmsNormArgs& args, void* stream);
const char* LaunchRmsNormBackward(const RmsNormBackwardArgs& args,
                                  void* stream);
const char* LaunchRope(const RopeArgs& args, void* stream);
const char* LaunchSwiGlu(const SwiGluArgs& args, void* stream);
const char* LaunchSwiGluBackward(const SwiGluBackwardArgs& args, void* stream);
const char* LaunchCrossEntropy(const CrossEntropyArgs& args, void* stream);
const char* LaunchEmbeddingBackward(const EmbeddingBackwardArgs& args,
                                    void* stream);
const char* LaunchAdamW(const AdamWArgs& args, void* stream);
const char* LaunchSquaredSum(const SquaredSumArgs& args, void* stream);
const char* LaunchDropout(const DropoutArgs& args, void* stream);

constexpr CudaKernels MakeTable(bool (*supports)(int device),
                                void* (*current_stream)(int device)) {
  return {sizeof(CudaKernels),   supports,
          current_stream,        LaunchRmsNorm,
          LaunchRmsNormBackward, LaunchRope,
          LaunchSwiGlu,          LaunchSwiGluBackward,
          LaunchCrossEntropy,    LaunchEmbeddingBackward,
          LaunchAdamW,           LaunchSquaredSum,
          LaunchDropout};
}

}  // namespace capstan::kernels::cuda

#endif  // CAPSTAN_KERNELS_CUDA_LAUNCHERS_H_
