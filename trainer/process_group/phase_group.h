// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_PHASE_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_PHASE_GROUP_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// A group whose ranks can end each other's collectives.
//
// A run is a sequence of phases, the same on all ranks, each of which ends with
// EndPhase (which Agree calls). A rank that fails in the midst of a phase goes
// straight there: the others' collectives of the phase, under way or still to
// come, end with an error, so that they get there, too. Then all know who
// failed, what is pending is dropped, and the group is as new, with the groups
// that were split from it.
//
// Groups over shared memory are such groups, of one host or several. Gloo's (of
// CAPSTAN_CPU_COLLECTIVES=gloo) and NCCL's aren't: there a rank that fails
// among collectives must end, which the others see (AgreeAfterCollectives).
class PhaseGroup {
 public:
  virtual ~PhaseGroup() = default;

  // Ends the phase on all ranks; `mine`: this rank's outcome, of which an error
  // that is IsLostPeer doesn't count if another rank failed. Returns the rank
  // that failed, the lowest if there are several, or -1. Errors if ranks are
  // lost. Without a failure a barrier.
  virtual absl::StatusOr<int> EndPhase(const absl::Status& mine,
                                       const std::string& what) = 0;

  // Ends the others' collectives for this rank's failure `why` before its
  // EndPhase, or if it never gets there.
  virtual void FailPhase(const std::string& why) = 0;
  // Whether a rank has failed in this phase, as far as is known here.
  virtual bool PhaseFailed() const = 0;

  // After FailPhase of any rank: this rank's collectives do nothing and succeed
  // until EndPhase, so that what is in the midst of some can get to its end.
  virtual void StopCommunicating() = 0;
};

// A group that adds something to another one.
class GroupAround {
 public:
  virtual ~GroupAround() = default;
  virtual ProcessGroup& inner() = 0;
};

// Null if it isn't one.
PhaseGroup* PhaseGroupOf(ProcessGroup& group);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_PHASE_GROUP_H_
