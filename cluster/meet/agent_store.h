// SPDX-License-Identifier: Apache-2.0
//
// The store that torchrun's agent serves at MASTER_ADDR:MASTER_PORT, in which
// rank 0 publishes its place. The agent obeys anybody who reaches it, so the
// ranks meet at rank 0 as under any other launcher.
#ifndef CAPSTAN_CLUSTER_MEET_AGENT_STORE_H_
#define CAPSTAN_CLUSTER_MEET_AGENT_STORE_H_

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/launch/rank_info.h"
#include "cluster/meet/protocol.h"

namespace capstan {

// Connects to the store. This and the functions below return UNAVAILABLE if the
// agent doesn't answer.
absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenAgentStore(
    const RankInfo& info, std::chrono::milliseconds timeout);

absl::Status PublishPlace(c10d::Store& agent, const MeetingPlace& place);
// Also UNAVAILABLE until rank 0 has published it.
absl::StatusOr<MeetingPlace> PublishedPlace(c10d::Store& agent);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_AGENT_STORE_H_
