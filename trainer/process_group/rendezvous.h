// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// How long ranks wait for the others to join.
constexpr std::chrono::seconds kJoinTimeout{300};
// Collective timeout; long, since a rank may be saving meanwhile.
constexpr std::chrono::minutes kCollectiveTimeout{30};

// Joins the other ranks at info.master_addr:master_port, served by rank 0 (or
// by torchrun, if the environment says so), and blocks until all have joined.
// On timeout UNAVAILABLE, with the address and the missing ranks.
absl::StatusOr<c10::intrusive_ptr<c10d::Store>> JoinStore(
    const RankInfo& info, std::chrono::milliseconds timeout = kJoinTimeout);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_
