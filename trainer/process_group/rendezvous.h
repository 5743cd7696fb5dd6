// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// How long ranks wait for the others to join.
constexpr std::chrono::seconds kJoinTimeout{300};
// Of collectives: none. A rank may save, sample or evaluate meanwhile for as
// long as it likes; what is too long is the watchdog's to say (trainer/watch).
constexpr std::chrono::hours kCollectiveTimeout{24 * 365 * 10};

// What a rank has once all have met.
struct Meeting {
  // Shared by all ranks; served by rank 0, or by torchrun's agent.
  c10::intrusive_ptr<c10d::Store> store;
  // This host's address in the traffic between the ranks, numeric, and the
  // network interface that has it ("" if none does).
  std::string host_address;
  std::string interface;
};

// Meets the other ranks of the run, and blocks until all have come. Rank 0
// serves the meeting (meeting/server.h), unless info.agent_store. The others
// find it at info.master_addr:master_port; if one of these isn't known, rank 0
// publishes both in a file of info.meeting_folder (meeting/meeting_file.h).
// Who doesn't have the run's key and token is turned away. If the run has one
// host, only loopback is used, else only the chosen interface.
//
// With info.comes_again a rank that leaves before all have come may come again,
// and NoteHosts is called. When the ranks have met before, those of a host that
// is gone don't come: after info.return_seconds rank 0 gives it up, or the
// others rank 0's (NoteHostsGone), if info.min_processes are left.
//
// UNAVAILABLE, with the address and the missing ranks, on timeout or if a rank
// leaves; FAILED_PRECONDITION if this process is not to be in the run, or an
// address can't be used.
absl::StatusOr<Meeting> Meet(const RankInfo& info,
                             std::chrono::milliseconds timeout = kJoinTimeout);

// This rank's group is connected, and the meeting's store may go. Until then
// the others, who wait in the store for what this rank shall say, hear at once
// that it has left.
void MayLeave(const Meeting& meeting);

// Has NCCL use the meeting's interface between hosts, unless
// NCCL_SOCKET_IFNAME is set.
void ChooseInterfaceOfNccl(const RankInfo& info, const Meeting& meeting);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_RENDEZVOUS_H_
