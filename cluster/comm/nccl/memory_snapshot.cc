// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/nccl/memory_snapshot.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <mutex>
#include <string>
#include <utility>

#include "cluster/comm/nccl/cuda_graph.h"

namespace capstan {
namespace {

// Events, the newest: about 100 MB of host memory with their stacks.
constexpr size_t kHistory = 100000;

// What the observer below has seen.
struct Failure {
  std::mutex mutex;
  std::string snapshot;
};

Failure& TheFailure() {
  static Failure* const failure = new Failure;  // outlives every tensor
  return *failure;
}

std::string NameOf(int device) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))
      ->name;
}

// The allocator calls this before it throws: unwinding frees tensors that
// existed when memory ran out.
void KeepSnapshot(int64_t, size_t, size_t, size_t) {
  try {
    std::string snapshot = torch::cuda::_memory_snapshot_pickled();
    Failure& failure = TheFailure();
    const std::lock_guard<std::mutex> lock(failure.mutex);
    failure.snapshot = std::move(snapshot);
  } catch (...) {
    // The failed allocation is the error to report.
  }
}

void RecordHistory() {
  // By default each address is looked up by a process of addr2line, which takes
  // minutes for libraries of LibTorch's size.
  setenv("TORCH_SYMBOLIZE_MODE", "dladdr", /*overwrite=*/0);
  // As torch.cuda.memory._record_memory_history(): all events, with the stacks
  // of allocations and frees, of C++.
  torch::cuda::_record_memory_history(std::optional<std::string>("all"),
                                      std::optional<std::string>("all"),
                                      /*stacks=*/"all", kHistory);
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(&KeepSnapshot);
}

std::string Snapshot() {
  {
    Failure& failure = TheFailure();
    const std::lock_guard<std::mutex> lock(failure.mutex);
    if (!failure.snapshot.empty()) return std::move(failure.snapshot);
  }
  return torch::cuda::_memory_snapshot_pickled();
}

void Pin(void* memory, int64_t bytes) {
  C10_CUDA_CHECK(cudaHostRegister(memory, static_cast<size_t>(bytes),
                                  cudaHostRegisterDefault));
}

void Unpin(void* memory) {
  // At the process's end CUDA may be gone, and the pages are free anyway.
  if (cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
}

}  // namespace

const GpuTools kGpuTools = {
    NameOf, RecordHistory, Snapshot, NewCudaGraph, IdleGraphMemory, Pin, Unpin};

}  // namespace capstan
