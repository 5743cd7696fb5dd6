// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/process_group/async_group.h"
#include "trainer/process_group/communication_meter.h"
#include "trainer/process_group/shm/shm_meeting.h"

namespace capstan {

// A process group of CPU ranks on one host, over shared memory. Blocks until
// all ranks of `meeting` have called it. UNAVAILABLE if one never will.
// `parent`: the group that it is split from.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateShmGroup(
    std::unique_ptr<ShmMeeting> meeting,
    std::shared_ptr<CommunicationMeter> meter, AsyncGroup* parent = nullptr);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_
