// SPDX-License-Identifier: Apache-2.0
//
// Kernels of real CUDA code: they are known by name and can't run here. A call
// of one is noted where LibTorch's host code is what is looked at
// (RunsHostCode); else it means that an operator isn't stood in for.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/properties.h"
#include "testing/standin/runtime/report.h"
#include "testing/standin/runtime/settings.h"

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

// "at::native::reduce_kernel<..>" of its whole signature.
std::string NameOf(const void* function) {
  std::lock_guard lock(TheKernels().mutex);
  const auto found = TheKernels().names.find(function);
  return found == TheKernels().names.end() ? "?" : Demangled(found->second);
}

std::string DimText(dim3 d) {
  return std::to_string(d.x) + "x" + std::to_string(d.y) + "x" +
         std::to_string(d.z);
}

// What <<<grid, block, shared, stream>>> says.
struct Shape {
  dim3 grid = dim3(1, 1, 1), block = dim3(1, 1, 1);
  size_t shared = 0;  // bytes of dynamic shared memory
  cudaStream_t stream = nullptr;
};
thread_local Shape pushed;  // by __cudaPushCallConfiguration

thread_local const char* current_operator = nullptr;

cudaError_t NoteLaunch(const std::string& kernel, cudaStream_t stream) {
  Work work;
  work.name = current_operator == nullptr ? kernel : current_operator;
  work.kernel = kernel;
  return static_cast<cudaError_t>(Enqueue(stream, std::move(work)));
}

// Of LibTorch's host code.
cudaError_t NoteLaunchOf(const void* function, const Shape& shape) {
  // A device refuses these, whatever the kernel is.
  const auto threads =
      static_cast<uint64_t>(shape.block.x) * shape.block.y * shape.block.z;
  const bool empty = shape.grid.x == 0 || shape.grid.y == 0 ||
                     shape.grid.z == 0 || threads == 0;
  if (empty || threads > 1024 || shape.grid.y > 65535 || shape.grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  // Nobody reads the name, which takes time.
  if (TheSettings().trace.empty()) return NoteLaunch("", shape.stream);
  return NoteLaunch(NameOf(function) + " grid " + DimText(shape.grid) +
                        " block " + DimText(shape.block) + " shared " +
                        std::to_string(shape.shared),
                    shape.stream);
}

cudaError_t RefuseLaunch(const void* function) {
  const std::string name = NameOf(function);
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

cudaError_t Launch(const void* function, const Shape& shape) {
  return RunsHostCode() ? NoteLaunchOf(function, shape)
                        : RefuseLaunch(function);
}

// What any driver function answers that isn't here.
int Unsupported() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED

}  // namespace

bool RunsHostCode() { return TheSettings().host_code; }

void NameOperator(const char* name) { current_operator = name; }
bool OperatorIsNamed() { return current_operator != nullptr; }

}  // namespace capstan::standin

extern "C" {

using capstan::standin::Begin;
using capstan::standin::pushed;
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

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     void* stream) {
  pushed = {grid, block, shared, static_cast<cudaStream_t>(stream)};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                       void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  std::memcpy(stream, &pushed.stream, sizeof(pushed.stream));
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block,
                             void**, size_t shared, cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  return Result(
      capstan::standin::Launch(function, {grid, block, shared, stream}));
}

cudaError_t __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block,
                               void** arguments, size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                const void* function, void** arguments) {
  return cudaLaunchKernel(function, config->gridDim, config->blockDim,
                          arguments, config->dynamicSmemBytes, config->stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid,
                                        dim3 block, void** arguments,
                                        size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

// A call of a library of NVIDIA's that launches a kernel (cublas.c): what its
// stub calls. Returns 0; without LibTorch's host code nothing may call it.
int capstan_standin_library_launch(const char* function, cudaStream_t stream) {
  if (!capstan::standin::RunsHostCode()) {
    std::fprintf(stderr, "stand-in device: nothing stands in for %s\n",
                 function);
    std::abort();
  }
  return capstan::standin::NoteLaunch(function, stream) == cudaSuccess ? 0 : 1;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  if (const cudaError_t error = Begin()) return error;
  std::memset(attributes, 0, sizeof(*attributes));
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  // CUB chooses its algorithms by it.
  const capstan::standin::Card& card = capstan::standin::TheCard();
  attributes->ptxVersion = attributes->binaryVersion =
      10 * card.major + card.minor;
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
