// SPDX-License-Identifier: Apache-2.0
//
// Kernels of real CUDA code: they are known by name and can't run here. A call
// of one means that an operator isn't stood in for.
#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>

#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

struct Kernels {
  std::mutex mutex;
  std::map<const void*, const char*> names;  // mangled, by the host's function
};

Kernels& TheKernels() {
  static Kernels* const kernels = new Kernels;
  return *kernels;
}

void Keep(const void* function, const char* name) {
  std::lock_guard lock(TheKernels().mutex);
  TheKernels().names[function] = name;
}

cudaError_t Launch(const void* function) {
  std::string name = "?";
  {
    std::lock_guard lock(TheKernels().mutex);
    const auto found = TheKernels().names.find(function);
    if (found != TheKernels().names.end()) name = Demangled(found->second);
  }
  std::string where;
  for (const std::string& frame : Stack()) where += "\n  " + frame;
  ReportOnce("kernel", name,
             "nothing stands in for the kernel " + name +
                 "; route the operator that launches it "
                 "(testing/standin/operators):" +
                 where);
  LoseDevice(cudaErrorInvalidDeviceFunction);
  return cudaErrorInvalidDeviceFunction;
}

// What any driver function answers that isn't here.
int Unsupported() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED

}  // namespace
}  // namespace capstan::standin

extern "C" {

using capstan::standin::Begin;
using capstan::standin::Result;

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* function, char*,
                            const char* name, int, void*, void*, void*, void*,
                            int*) {
  capstan::standin::Keep(function, name);
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int,
                       int) {}

cudaError_t __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                       void* stream) {
  *grid = dim3(1, 1, 1);
  *block = dim3(1, 1, 1);
  *shared = 0;
  std::memset(stream, 0, sizeof(void*));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t,
                               cudaStream_t) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Launch(kernel));
}

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t,
                             cudaStream_t) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Launch(function));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function,
                                void**) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Launch(function));
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3,
                                        void**, size_t, cudaStream_t) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Launch(function));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  if (const cudaError_t error = Begin()) return error;
  std::memset(attributes, 0, sizeof(*attributes));
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return Begin();
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          const void*, int,
                                                          size_t) {
  if (const cudaError_t error = Begin()) return error;
  *blocks = 1;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int threads, size_t shared, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function,
                                                       threads, shared);
}

cudaError_t cudaGetSymbolAddress(void**, const void*) {
  return Result(cudaErrorNotSupported);
}

cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t,
                               cudaMemcpyKind) {
  return Result(cudaErrorNotSupported);
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (*function == nullptr) {
    *function = reinterpret_cast<void*>(&capstan::standin::Unsupported);
  }
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
