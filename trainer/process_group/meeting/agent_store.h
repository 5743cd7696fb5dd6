// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_AGENT_STORE_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_AGENT_STORE_H_

#include <chrono>

#include "absl/status/statusor.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/process_group/rendezvous.h"

namespace capstan {

// Meet (rendezvous.h) in the store that torchrun's agent serves at
// info.master_addr:master_port. Whom it lets in is the agent's affair.
absl::StatusOr<Meeting> MeetAtAgent(const RankInfo& info,
                                    std::chrono::milliseconds timeout);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_AGENT_STORE_H_
