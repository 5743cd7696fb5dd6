// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// How long ranks wait for the others to come.
constexpr std::chrono::seconds kJoinTimeout{300};
// How long a collective may take: a rank may be saving meanwhile.
constexpr std::chrono::minutes kCollectiveTimeout{30};

// Meets the other ranks at info.master_addr:master_port, where rank 0 serves
// (or torchrun, which says so in the environment), and waits until all are
// there. UNAVAILABLE, with the address and the ranks that are missing, when
// they are not there in time.
absl::StatusOr<c10::intrusive_ptr<c10d::Store>> JoinStore(
    const RankInfo& info, std::chrono::milliseconds timeout = kJoinTimeout);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_
