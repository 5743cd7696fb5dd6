// SPDX-License-Identifier: Apache-2.0
//
// libcapstan_standin_kernels.so: the kernels of kernels/cuda on the stand-in
// device, by the emulator. CAPSTAN_CUDA_KERNELS names it.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAStream.h>

#include <stdexcept>

#include "kernels/cuda/cuda_kernels.h"
#include "testing/cuda/emulated_kernels.h"
#include "testing/standin/device.h"
#include "testing/standin/kernels/launches.h"

namespace capstan::kernels::cuda {
namespace {

namespace st = capstan::standin;

// The emulator's launcher behind an entry of the table, which is called when
// the work runs.
template <typename Args>
using Launcher = const char* (*)(const Args& args, void* stream);

template <typename Args, Launcher<Args> CudaKernels::*entry>
const char* Enqueue(const Args& args, void* stream) {
  Args on_host = args;
  st::Work work;
  st::Launch launch(&work);
  launch.Describe(on_host);
  if (work.cost.launches == 0) return nullptr;  // nothing to do
  work.run = [on_host] {
    const char* error = (EmulatedKernels().*entry)(on_host, nullptr);
    if (error != nullptr) throw std::runtime_error(error);
    return st::Progress::kDone;
  };
  return st::Enqueue(stream, work) == 0 ? nullptr
                                        : "the stand-in device is lost";
}

void* CurrentStream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device))
      .stream();
}

int Capability(int device) {
  const cudaDeviceProp* const is =
      at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
  return 10 * is->major + is->minor;
}

// Each entry of the table: an emulated one left as it is would run at once, on
// memory that the host can't see.
static_assert(sizeof(CudaKernels) == 18 * sizeof(void*),
              "add the new kernel to Table, and to launches.h");

CudaKernels Table() {
  using K = CudaKernels;
  CudaKernels table = EmulatedKernels();
  table.capability = Capability;
  table.current_stream = CurrentStream;
  table.rms_norm = Enqueue<RmsNormArgs, &K::rms_norm>;
  table.rms_norm_backward = Enqueue<RmsNormBackwardArgs, &K::rms_norm_backward>;
  table.rope = Enqueue<RopeArgs, &K::rope>;
  table.swiglu = Enqueue<SwiGluArgs, &K::swiglu>;
  table.swiglu_backward = Enqueue<SwiGluBackwardArgs, &K::swiglu_backward>;
  table.cross_entropy = Enqueue<CrossEntropyArgs, &K::cross_entropy>;
  table.embedding_backward =
      Enqueue<EmbeddingBackwardArgs, &K::embedding_backward>;
  table.adamw = Enqueue<AdamWArgs, &K::adamw>;
  table.adamw_8bit = Enqueue<AdamW8BitArgs, &K::adamw_8bit>;
  table.squared_sum = Enqueue<SquaredSumArgs, &K::squared_sum>;
  table.dropout = Enqueue<DropoutArgs, &K::dropout>;
  table.dequantize_nf4 = Enqueue<DequantizeNf4Args, &K::dequantize_nf4>;
  table.cast_fp8 = Enqueue<CastFp8Args, &K::cast_fp8>;
  table.group_choices = Enqueue<GroupChoicesArgs, &K::group_choices>;
  table.sum_chosen = Enqueue<SumChosenArgs, &K::sum_chosen>;
  return table;
}

}  // namespace

extern "C" __attribute__((visibility("default")))
CudaKernels capstan_cuda_kernels_v1;
CudaKernels capstan_cuda_kernels_v1 = Table();

}  // namespace capstan::kernels::cuda
