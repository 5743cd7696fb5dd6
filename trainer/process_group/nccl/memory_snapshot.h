// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_MEMORY_SNAPSHOT_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_MEMORY_SNAPSHOT_H_

#include "trainer/process_group/gpu_tools.h"

namespace capstan {

// GpuTools, by LibTorch's CUDA part.
extern const GpuTools kGpuTools;

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_MEMORY_SNAPSHOT_H_
