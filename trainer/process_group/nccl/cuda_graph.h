// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_CUDA_GRAPH_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_CUDA_GRAPH_H_

#include <cstdint>
#include <memory>

#include "trainer/process_group/device_graph.h"

namespace capstan {

// GpuTools::new_graph. Not at::cuda::CUDAGraph: after a failed capture that
// leaves its pool attached to the allocator, and it doesn't tell what is in the
// graph.
std::unique_ptr<DeviceGraph> NewCudaGraph();

// GpuTools::idle_graph_memory.
int64_t IdleGraphMemory();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_CUDA_GRAPH_H_
