// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_AGENT_STORE_H_
#define CAPSTAN_CLUSTER_MEET_AGENT_STORE_H_

#include <chrono>

#include "absl/status/statusor.h"
#include "cluster/launch/rank_info.h"
#include "cluster/meet/rendezvous.h"

namespace capstan {

// Meets (rendezvous.h) in the store that torchrun's agent serves at
// info.master_addr:master_port. The agent decides whom it lets in.
absl::StatusOr<Meeting> MeetAtAgent(const RankInfo& info,
                                    std::chrono::milliseconds timeout);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_AGENT_STORE_H_
