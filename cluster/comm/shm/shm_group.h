// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_SHM_SHM_GROUP_H_
#define CAPSTAN_CLUSTER_COMM_SHM_SHM_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cluster/comm/async_group.h"
#include "cluster/comm/communication_meter.h"
#include "cluster/comm/shm/shm_meeting.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Creates a process group of CPU ranks on one host, over shared memory. Blocks
// until all ranks of `meeting` have called it. UNAVAILABLE if one has left.
// `parent` is the group that it is split from.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateShmGroup(
    std::unique_ptr<ShmMeeting> meeting,
    std::shared_ptr<CommunicationMeter> meter, AsyncGroup* parent = nullptr);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_SHM_SHM_GROUP_H_
