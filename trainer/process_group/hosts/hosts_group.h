// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_HOSTS_HOSTS_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_HOSTS_HOSTS_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/process_group/backend_group.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace capstan {

// The process group of CPU ranks, which meet in `store`, by where they are:
// "shm" if all share one host's memory, else "shm+gloo" (HostsCollectives).
// Ranks share a host if they have one kernel, host name, PID namespace and
// user, or the same CAPSTAN_HOST_ID, and if opening each other's memory works;
// else each is a host of its own. `connect` joins the hosts' leaders, here and
// in groups split off.
//
// Null on all ranks if CAPSTAN_CPU_COLLECTIVES is "gloo" on any, or if ranks
// alternate between hosts too often (HostsCollectives::kMaxSegments): such a
// run is for a flat group. Throws what the store throws.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateHostsGroup(
    const RankInfo& info, const c10::intrusive_ptr<c10d::Store>& store,
    BackendGroup::Connect connect);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_HOSTS_HOSTS_GROUP_H_
