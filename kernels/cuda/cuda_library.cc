// SPDX-License-Identifier: Apache-2.0
//
// The exports of libcapstan_kernels_cuda.so.
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_kernels_hash.h"

namespace capstan::kernels::cuda {
namespace {

// The library has code for 8.x to 12.x, and PTX for later ones.
int Capability(int device) {
  int major = 0, minor = 0;
  const bool known =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                             device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                             device) == cudaSuccess;
  return known ? 10 * major + minor : 0;
}

void* CurrentStream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device))
      .stream();
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const CudaKernels capstan_cuda_kernels_v1 =
    MakeTable(CAPSTAN_CUDA_KERNELS_HASH, Capability, CurrentStream);

}  // namespace capstan::kernels::cuda
