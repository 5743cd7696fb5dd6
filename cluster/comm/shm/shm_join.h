// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_SHM_SHM_JOIN_H_
#define CAPSTAN_CLUSTER_COMM_SHM_SHM_JOIN_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/comm/shm/shm_meeting.h"

namespace capstan {

// A rank of a group being created.
struct ShmMember {
  int place;  // its rank among those that exchange texts
  int name;   // its rank in the run
};

// All-gathers a text of less than 64 bytes; returns the texts by rank.
using ExchangeFunction = std::function<absl::StatusOr<std::vector<std::string>>(
    const std::string& mine)>;

// The result of JoinShmMeeting.
struct ShmJoined {
  // Joins this rank's members; null for a single one, or if any of them failed.
  std::unique_ptr<ShmMeeting> meeting;
  // For each rank that exchanged texts, whether it can share memory with the
  // others of its group.
  std::vector<bool> can_share;
  // This rank's error, if it can't.
  absl::Status problem;
};

// Creates or opens the segment shared by `members`, of which this process is
// the one at `place`, with `buffers` additional slots. Called by all ranks that
// exchange texts at once, each with its own group. Returns errors of
// `exchange`.
absl::StatusOr<ShmJoined> JoinShmMeeting(const std::vector<ShmMember>& members,
                                         int place, int buffers,
                                         const ExchangeFunction& exchange);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_SHM_SHM_JOIN_H_
