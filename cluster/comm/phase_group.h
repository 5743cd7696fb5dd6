// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_PHASE_GROUP_H_
#define CAPSTAN_CLUSTER_COMM_PHASE_GROUP_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// A group whose ranks can end each other's collectives.
//
// A run is a sequence of phases, the same on all ranks, each of which ends with
// EndPhase (which Agree calls). A rank that fails within a phase calls it at
// once. The other ranks' collectives of the phase, pending or later, then
// return an error, so that they call it, too. Then all know which rank failed,
// pending collectives are dropped, and the group and those split from it are
// reset.
//
// Groups over shared memory, of one host or several, are PhaseGroups. Gloo's
// (CAPSTAN_CPU_COLLECTIVES=gloo) and NCCL's aren't: there a rank that fails
// between collectives must exit, which the others notice
// (AgreeAfterCollectives).
class PhaseGroup {
 public:
  virtual ~PhaseGroup() = default;

  // Ends the phase on all ranks; a barrier. `mine` is this rank's outcome; an
  // error that IsLostPeer is ignored if another rank failed. Returns the lowest
  // rank that failed, or -1. Fails if ranks are lost.
  virtual absl::StatusOr<int> EndPhase(const absl::Status& mine,
                                       const std::string& what) = 0;

  // Aborts the others' collectives because of this rank's failure `why`, before
  // its EndPhase or instead of it.
  virtual void FailPhase(const std::string& why) = 0;
  // Whether this rank knows of a failure in this phase.
  virtual bool PhaseFailed() const = 0;

  // Makes this rank's collectives succeed without effect until EndPhase, so
  // that code that issues them can run to its end. Called after any rank's
  // FailPhase.
  virtual void StopCommunicating() = 0;
};

// A group that wraps another one.
class GroupAround {
 public:
  virtual ~GroupAround() = default;
  virtual ProcessGroup& inner() = 0;
};

// Returns the PhaseGroup that `group` is or wraps, or null.
PhaseGroup* PhaseGroupOf(ProcessGroup& group);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_PHASE_GROUP_H_
