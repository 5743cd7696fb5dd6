// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_JOIN_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_JOIN_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/process_group/shm/shm_meeting.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace capstan {

// A rank of a group that is to be.
struct ShmMember {
  int place;  // its rank among those who exchange texts
  int name;   // its rank in the run
};

// Tells all others a short text, and returns theirs, by rank.
using ExchangeFunction = std::function<absl::StatusOr<std::vector<std::string>>(
    const std::string& mine)>;

// Opens the memory that `members` will share, this process being the one at
// `place`; null for a single one. All who exchange texts call it at the same
// time, each with its own group. FAILED_PRECONDITION, for all of a group, when
// one of it can't.
absl::StatusOr<std::unique_ptr<ShmMeeting>> JoinShmMeeting(
    const std::vector<ShmMember>& members, int place,
    const ExchangeFunction& exchange);

// A group over shared memory if all ranks of the run, which meet in `store`,
// can have one: they are on one host, in the same process name space, of one
// user, and CAPSTAN_CPU_COLLECTIVES is not "gloo". Else null, for all ranks.
// Throws what the store throws.
absl::StatusOr<std::unique_ptr<ProcessGroup>> TryShmGroup(const RankInfo& info,
                                                          c10d::Store* store);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_JOIN_H_
