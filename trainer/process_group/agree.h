// SPDX-License-Identifier: Apache-2.0
//
// Agreement between ranks: on an error, a number, or stopping. What one rank
// learns alone reaches the others here or with the sums that end each training
// step (trainer/session/step_sums.h).
//
// All functions are collective, and throw CommunicationError unless they return
// a Status.
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_AGREE_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_AGREE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Ends a phase of the run (phase_group.h). OK if `mine` is OK on all ranks.
// Otherwise an error on all: a rank that failed gets its own, the others one
// that IsLostPeer, "rank R could not WHAT", with what(R) the activity of the
// first failed rank ("write out/state-00001"). Also a barrier. Throws
// CommunicationError.
//
// In a PhaseGroup the phase may have collectives: an error of one rank ends the
// others' and has them come here, after which the group can be used again.
absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const std::function<std::string(int rank)>& what);

// The same for work shared by all ranks. Doesn't throw; a rank that lost the
// others returns at once.
absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const char* what);

// The same after a phase that has collectives, in any group: without a
// PhaseGroup a rank that failed returns at once, as the others may be in them,
// and they see it end.
absl::Status AgreeAfterCollectives(ProcessGroup& group,
                                   const absl::Status& mine, const char* what);

// Ends a phase with collectives after whose failure the run goes on. `mine` is
// an error if this rank has not made all of them. If any rank has not, the
// others break off, too; who has calls `finish` while its collectives do
// nothing (PhaseGroup::StopCommunicating), so that the strategy ends its pass.
// Returns whether that was necessary; an error, which no rank survives, if
// `finish` fails or, without a PhaseGroup, this rank broke off. Doesn't throw.
absl::StatusOr<bool> BrokeOff(ProcessGroup& group, const absl::Status& mine,
                              const char* what,
                              const std::function<void()>& finish);

// Logical OR over the ranks.
absl::StatusOr<bool> AnyRank(ProcessGroup& group, bool mine);

// Each rank's `mine`, by rank.
std::vector<double> FromAllRanks(ProcessGroup& group, double mine);
// The same for short texts.
std::vector<std::string> FromAllRanks(ProcessGroup& group,
                                      const std::string& mine);

// Broadcasts rank 0's `text`.
absl::StatusOr<std::string> FromRank0(ProcessGroup& group,
                                      const std::string& text);

// Calls fn() and converts exceptions to a Status: for work between two
// collectives, the second of which an exception must not skip.
absl::Status CatchAll(const std::function<absl::Status()>& fn);

// CANCELLED if this rank received a signal. Not collective.
absl::Status StopStatus();

// Ends work that a signal may have interrupted: `mine` is this rank's outcome,
// CANCELLED if StopPoll ended its loop. Returns an error if any rank has one
// (as Agree); else CANCELLED on all ranks if any was stopped, and from then on
// StopRequested says so. Doesn't throw.
absl::Status AgreeOrStop(ProcessGroup& group, const absl::Status& mine,
                         const char* what);

// Decides when a loop stops. If its body contains collectives, all ranks must
// leave it in the same round, so they vote; otherwise each rank checks its own
// signal.
class StopPoll {
 public:
  enum class Votes {
    // About ten times a second however short the rounds: each vote carries the
    // mean round time, which schedules the next.
    kSometimes,
    // In each round, so that a failing rank can stop the others (Leave).
    kEveryRound,
  };

  // `group` is null if the body has no collectives. Not owned.
  explicit StopPoll(ProcessGroup* group, Votes votes = Votes::kSometimes)
      : group_(group), votes_(votes) {}

  // Called at the start of each round; with a group, by all ranks equally
  // often. Once true, always true. Throws CommunicationError.
  bool Ask();

  // For kEveryRound, called once after the loop on every rank: `failed` if this
  // one can't go on. Returns whether any rank failed; ranks still in their
  // loops left them in the round in which it did. Without a group, returns
  // `failed`. Throws CommunicationError.
  bool Leave(bool failed);

 private:
  void Vote(bool failed);

  ProcessGroup* const group_;
  const Votes votes_;
  bool stop_ = false;
  bool failed_ = false;   // some rank failed
  int64_t interval_ = 1;  // rounds between votes
  int64_t left_ = 1;      // rounds until the next vote
  std::chrono::steady_clock::time_point voted_ =
      std::chrono::steady_clock::now();
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_AGREE_H_
