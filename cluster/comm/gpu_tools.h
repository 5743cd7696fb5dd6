// SPDX-License-Identifier: Apache-2.0
//
// What the core needs of a GPU besides collectives. libcapstan_nccl.so
// implements it, so that the core doesn't link CUDA's libraries.
#ifndef CAPSTAN_CLUSTER_COMM_GPU_TOOLS_H_
#define CAPSTAN_CLUSTER_COMM_GPU_TOOLS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cluster/comm/device_graph.h"

namespace capstan {

// Functions throw c10::Error.
struct GpuTools {
  // CUDA's name of the device: "NVIDIA H100 80GB HBM3".
  std::string (*name)(int device);
  // Starts to record all allocations of GPU memory and their stacks.
  void (*record_memory_history)();
  // Returns the recorded history and all blocks of GPU memory, as of the last
  // failed allocation or, if none has failed, as of now: a pickle that
  // pytorch.org/memory_viz reads. Called after record_memory_history.
  std::string (*memory_snapshot)();
  // Creates an empty graph on the current device.
  std::unique_ptr<DeviceGraph> (*new_graph)();
  // Returns the free bytes of the pool of GPU memory that the process's graphs
  // share and nothing else can use.
  int64_t (*idle_graph_memory)();
  // Pins mapped memory, all pages of it, and unpins it, which doesn't throw.
  void (*pin)(void* memory, int64_t bytes);
  void (*unpin)(void* memory);
};

// Null until CreateProcessGroup has loaded libcapstan_nccl.so.
const GpuTools* TheGpuTools();
void SetGpuTools(const GpuTools* tools);

// Pins memory, so that copies between it and a GPU run at the bus's speed while
// the host goes on, as long as the result lives; unmap it after that. Unlike
// pinned tensors, whose size LibTorch rounds up to a power of two, it takes
// what it holds. Throws c10::Error if it can't be pinned.
std::shared_ptr<void> PinMemory(void* memory, int64_t bytes);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_GPU_TOOLS_H_
