// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_CPU_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_CPU_GROUP_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/process_group/rendezvous.h"

namespace capstan {

// What this process's environment says wrongly of CreateCpuGroup: to be asked
// before others count on this rank.
absl::Status CheckCpuVariables(const RankInfo& info);

// The group of the run's ranks, which have met, for tensors on the CPU
// (CreateHostsGroup; Gloo between all ranks where that is for none). Blocks
// until all ranks have called it. UNAVAILABLE if one never will.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateCpuGroup(
    const RankInfo& info, const Meeting& meeting);

// UNAVAILABLE, within a catch clause of what the meeting's store has thrown.
absl::Status CouldNotMeet(const RankInfo& info);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_CPU_GROUP_H_
