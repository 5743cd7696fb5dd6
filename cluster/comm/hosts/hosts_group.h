// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_HOSTS_HOSTS_GROUP_H_
#define CAPSTAN_CLUSTER_COMM_HOSTS_HOSTS_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cluster/comm/backend_group.h"
#include "cluster/launch/rank_info.h"
#include "plugins/sdk/process_group.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace capstan {

// Creates the process group of CPU ranks, which meet in `store`: "shm" if all
// share one host's memory, otherwise "shm+gloo" (HostsCollectives). Ranks share
// a host if they have the same kernel, host name, PID namespace and user, or
// the same CAPSTAN_HOST_ID, and can open each other's memory; otherwise each
// counts as a host. `connect` joins the hosts' leaders, here and in groups
// split off.
//
// Returns null on all ranks if CAPSTAN_CPU_COLLECTIVES is "gloo" on any, or if
// ranks alternate between hosts too often (HostsCollectives::kMaxSegments);
// such a run needs a flat group. Throws what the store throws.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateHostsGroup(
    const RankInfo& info, const c10::intrusive_ptr<c10d::Store>& store,
    BackendGroup::Connect connect);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_HOSTS_HOSTS_GROUP_H_
