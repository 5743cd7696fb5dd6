// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_CREATE_H_
#define CAPSTAN_CLUSTER_COMM_CREATE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/launch/rank_info.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Joins the ranks of a run. On machines with GPUs uses NCCL on the rank's own
// GPU (libcapstan_nccl.so, found next to the trainer, is loaded only then);
// otherwise shared memory between the ranks of a host, and Gloo between hosts
// (CreateHostsGroup), or between all ranks if CAPSTAN_CPU_COLLECTIVES is "gloo"
// (default: "shm"). A group of one uses neither. Blocks until all ranks have
// joined. Errors name the peer or address that was not reached, or the
// environment variable that is wrong.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateProcessGroup(
    const RankInfo& info, int gpus);

// Whether this build has GPU support: libcapstan_nccl.so exists.
bool HasGpuParts();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_CREATE_H_
