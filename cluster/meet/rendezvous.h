// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_RENDEZVOUS_H_
#define CAPSTAN_CLUSTER_MEET_RENDEZVOUS_H_

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/launch/rank_info.h"

namespace capstan {

// How long ranks wait for the others to join.
constexpr std::chrono::seconds kJoinTimeout{300};
// The timeout of collectives: in effect none, since a rank may save, sample or
// evaluate while the others wait. The watchdog (cluster/watch) decides what
// takes too long.
constexpr std::chrono::hours kCollectiveTimeout{24 * 365 * 10};

// What Meet gives to each rank.
struct Meeting {
  // Shared by all ranks; served by rank 0.
  c10::intrusive_ptr<c10d::Store> store;
  // This host's address in the traffic between the ranks, numeric, and the
  // network interface that has it ("" if none does).
  std::string host_address;
  std::string interface;
};

// Meets the other ranks of the run, and blocks until all have come. Rank 0
// serves the meeting (meet/server.h). The others find it at
// info.master_addr:master_port; if one of these isn't known, rank 0 publishes
// both in a file of info.meeting_folder (meet/meeting_file.h), and if they are
// torchrun's agent's, in its store.
// Processes without the run's key and token are refused. A run on one host uses
// only loopback, another run only the chosen interface.
//
// With info.comes_again a rank that leaves before all have come may come again,
// and NoteHosts is called. When the ranks meet again after a restart, those of
// a lost host don't come: after info.return_seconds rank 0 gives that host up
// (NoteHostsGone), or the others give up rank 0's, if info.min_processes ranks
// are left.
//
// UNAVAILABLE, with the address and the missing ranks, on timeout or if a rank
// leaves; FAILED_PRECONDITION if this process doesn't belong to the run, or an
// address can't be used.
absl::StatusOr<Meeting> Meet(const RankInfo& info,
                             std::chrono::milliseconds timeout = kJoinTimeout);

// Returns UNAVAILABLE for the exception that the meeting's store has thrown;
// called within its catch clause.
absl::Status CouldNotMeet(const RankInfo& info);

// Tells the meeting that this rank's group is connected, so that the rank may
// leave. If it leaves before, the others' waits in the store end at once.
void MayLeave(const Meeting& meeting);

// Makes NCCL use the meeting's interface between hosts, unless
// NCCL_SOCKET_IFNAME is set.
void ChooseInterfaceOfNccl(const RankInfo& info, const Meeting& meeting);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_RENDEZVOUS_H_
