// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_CPU_GROUP_H_
#define CAPSTAN_CLUSTER_COMM_CPU_GROUP_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/launch/rank_info.h"
#include "cluster/meet/rendezvous.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Checks the environment variables that CreateCpuGroup reads. Called before
// other ranks rely on this one.
absl::Status CheckCpuVariables(const RankInfo& info);

// Creates the group of the run's ranks, which have met, for tensors on the CPU:
// CreateHostsGroup's, or Gloo between all ranks if that returns null. Blocks
// until all ranks have called it. UNAVAILABLE if one has left.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateCpuGroup(
    const RankInfo& info, const Meeting& meeting);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_CPU_GROUP_H_
