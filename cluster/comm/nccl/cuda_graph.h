// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_NCCL_CUDA_GRAPH_H_
#define CAPSTAN_CLUSTER_COMM_NCCL_CUDA_GRAPH_H_

#include <cstdint>
#include <memory>

#include "cluster/comm/device_graph.h"

namespace capstan {

// GpuTools::new_graph. It doesn't use at::cuda::CUDAGraph, which leaves its
// pool attached to the allocator after a failed capture and doesn't show what
// is in the graph.
std::unique_ptr<DeviceGraph> NewCudaGraph();

// GpuTools::idle_graph_memory.
int64_t IdleGraphMemory();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_NCCL_CUDA_GRAPH_H_
