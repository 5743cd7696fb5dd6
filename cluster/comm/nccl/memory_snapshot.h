// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_NCCL_MEMORY_SNAPSHOT_H_
#define CAPSTAN_CLUSTER_COMM_NCCL_MEMORY_SNAPSHOT_H_

#include "cluster/comm/gpu_tools.h"

namespace capstan {

// GpuTools, implemented with LibTorch's CUDA part.
extern const GpuTools kGpuTools;

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_NCCL_MEMORY_SNAPSHOT_H_
