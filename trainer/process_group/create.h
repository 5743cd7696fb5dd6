// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_CREATE_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_CREATE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// Joins the ranks of a run: NCCL on the rank's own GPU where the machine has
// GPUs (libcapstan_nccl.so, looked up beside the trainer, is loaded then and
// only then), else shared memory where all ranks are on one host and
// Gloo where not (or where CAPSTAN_CPU_COLLECTIVES is "gloo"). A group of one
// needs none. Blocks until all
// ranks are there. Errors say which peer or address was not reached.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateProcessGroup(
    const RankInfo& info, int gpus);

// Whether this build has the GPU parts: libcapstan_nccl.so is there.
bool HasGpuParts();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_CREATE_H_
