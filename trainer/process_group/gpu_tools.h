// SPDX-License-Identifier: Apache-2.0
//
// What the core asks of a GPU besides collectives. It doesn't link CUDA's
// libraries: libcapstan_nccl.so does.
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_GPU_TOOLS_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_GPU_TOOLS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/process_group/device_graph.h"

namespace capstan {

// Functions throw c10::Error.
struct GpuTools {
  // As CUDA says it: "NVIDIA H100 80GB HBM3".
  std::string (*name)(int device);
  // Keeps a history of the allocations of GPU memory from now on, with the
  // stacks that made them.
  void (*record_memory_history)();
  // The history and all blocks of GPU memory, as they were when an allocation
  // last failed or, if none has, as they are: a pickle that
  // pytorch.org/memory_viz reads. After record_memory_history.
  std::string (*memory_snapshot)();
  // Of the current device, empty.
  std::unique_ptr<DeviceGraph> (*new_graph)();
  // Bytes of GPU memory that all graphs of the process share and nothing else
  // can have, without what is allocated there now.
  int64_t (*idle_graph_memory)();
};

// Null until CreateProcessGroup has loaded libcapstan_nccl.so.
const GpuTools* TheGpuTools();
void SetGpuTools(const GpuTools* tools);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_GPU_TOOLS_H_
