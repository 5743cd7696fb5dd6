// SPDX-License-Identifier: Apache-2.0
#include "testing/ptx/interpreted_kernels.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "kernels/cuda/cuda_kernels_hash.h"
#include "testing/cuda/emulated_kernels.h"

namespace capstan::ptx {
namespace {

// Tensors as allocations of their own: aligned as CUDA's are, and apart.
class Allocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t kUnit = 512;
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    void* p = std::aligned_alloc(kUnit, (bytes / kUnit + 2) * kUnit);
    if (p == nullptr) throw std::bad_alloc();
    Allocations::Global().Add(p, static_cast<int64_t>(bytes));
    return {p, p, Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void Free(void* p) {
    Allocations::Global().Remove(p);
    std::free(p);
  }
};

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "testing/ptx: %s\n", message.c_str());
  std::abort();
}

Interpreter* MakeInterpreter() {
  auto* interpreter = new Interpreter;
  for (const auto& entry :
       std::filesystem::directory_iterator("kernels/cuda")) {
    if (entry.path().extension() != ".ptx") continue;
    std::ifstream file(entry.path());
    std::ostringstream text;
    text << file.rdbuf();
    const absl::Status status =
        interpreter->Load(entry.path().string(), text.str());
    if (!status.ok()) Die(std::string(status.message()));
  }
  static Allocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  return interpreter;
}

// What CUDA's runtime keeps: kernels by the address of their host function,
// the launch that is being prepared, and the last error.
struct State {
  std::map<const void*, std::string> kernels;
  dim3 grid, block;
  size_t shared_bytes = 0;
  std::string message;
  bool failed = false;
};
State& TheState() {
  static State* const state = new State;
  return *state;
}

Dim3 Of(dim3 d) {
  return {static_cast<int>(d.x), static_cast<int>(d.y), static_cast<int>(d.z)};
}

absl::Status Launch(const void* function, dim3 grid, dim3 block,
                    void** arguments, size_t shared_bytes) {
  const auto& kernels = TheState().kernels;
  const auto it = kernels.find(function);
  if (it == kernels.end()) return absl::NotFoundError("no such kernel");
  return KernelInterpreter().Launch(it->second, Of(grid), Of(block),
                                    static_cast<int64_t>(shared_bytes),
                                    arguments);
}

}  // namespace

Interpreter& KernelInterpreter() {
  static Interpreter* const interpreter = MakeInterpreter();
  return *interpreter;
}

// What nvcc's host code calls, instead of libcudart (crt/host_runtime.h).
extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
  return static_cast<void**>(binary);
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** /*handle*/) {}

void __cudaRegisterFunction(void** /*handle*/, const char* function,
                            char* /*device_function*/, const char* name,
                            int /*thread_limit*/, uint3* /*thread*/,
                            uint3* /*block*/, dim3* /*block_size*/,
                            dim3* /*grid_size*/, int* /*warp_size*/) {
  TheState().kernels[function] = name;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     CUstream_st* /*stream*/) {
  State& state = TheState();
  state.grid = grid;
  state.block = block;
  state.shared_bytes = shared_bytes;
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block,
                                       size_t* shared_bytes, void* stream) {
  const State& state = TheState();
  *grid = state.grid;
  *block = state.block;
  *shared_bytes = state.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = nullptr;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                               void** arguments, size_t shared_bytes,
                               cudaStream_t /*stream*/) {
  const absl::Status status =
      Launch(kernel, grid, block, arguments, shared_bytes);
  if (status.ok()) return cudaSuccess;
  TheState().failed = true;
  TheState().message = std::string(status.message());
  return cudaErrorLaunchFailure;
}

cudaError_t cudaGetLastError() {
  State& state = TheState();
  const bool failed = state.failed;
  state.failed = false;
  return failed ? cudaErrorLaunchFailure : cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t /*error*/) {
  return TheState().message.c_str();
}

}  // extern "C"

}  // namespace capstan::ptx

namespace capstan::kernels::cuda {

const CudaKernels& EmulatedKernels() {
  ptx::KernelInterpreter();
  static const CudaKernels kernels = MakeTable(
      CAPSTAN_CUDA_KERNELS_HASH, [](int) { return 90; },
      [](int) -> void* { return nullptr; });
  return kernels;
}

void EmulateBackwards(bool backwards) {
  ptx::KernelInterpreter().RunBackwards(backwards);
}

}  // namespace capstan::kernels::cuda
