// SPDX-License-Identifier: Apache-2.0
//
// How ranks agree: on an error, on a number, on stopping. Whatever one rank
// learns alone reaches the others here, or with the sums that end each
// training step (trainer/session/step_sums.h).
//
// All functions are collective. Unless they return a Status they throw
// CommunicationError.
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

// OK if `mine` is OK on all ranks. Otherwise an error on all: a rank that
// failed gets its own; the others UNAVAILABLE, since theirs isn't the cause,
// "rank R could not WHAT", where what(R) says what the first failed rank was
// doing ("write out/state-00001"). Also a barrier. Throws CommunicationError.
absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const std::function<std::string(int rank)>& what);

// The same for work that all ranks share. Doesn't throw; a rank that has lost
// the others (UNAVAILABLE) returns at once.
absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const char* what);

// Whether it is true of any rank.
absl::StatusOr<bool> AnyRank(ProcessGroup& group, bool mine);

// `mine` of each rank, in order.
std::vector<double> FromAllRanks(ProcessGroup& group, double mine);

// Rank 0's `text`, on all ranks.
absl::StatusOr<std::string> FromRank0(ProcessGroup& group,
                                      const std::string& text);

// fn(), with what it throws as a Status: for work between two collectives,
// which an exception must not skip.
absl::Status CatchAll(const std::function<absl::Status()>& fn);

// CANCELLED if a signal has come to this rank. Not collective.
absl::Status StopStatus();

// Ends work that a signal may have broken off: `mine` is this rank's outcome,
// CANCELLED if StopPoll ended its loop. An error if any rank has one (as
// Agree); else CANCELLED on all ranks if any was stopped, and StopRequested
// says so from then on. Doesn't throw.
absl::Status AgreeOrStop(ProcessGroup& group, const absl::Status& mine,
                         const char* what);

// Tells a loop when to break off. Where its body holds collectives, all ranks
// must leave it in the same round, so they vote; elsewhere each rank looks at
// its own signal.
class StopPoll {
 public:
  enum class Votes {
    // About ten times a second, however short the rounds: the next vote is set
    // by the mean time of a round, which the vote itself carries.
    kSometimes,
    // In each round, so that a rank which fails can make the others stop
    // (Leave).
    kEveryRound,
  };

  // `group` is null where the body holds no collectives. Not owned.
  explicit StopPoll(ProcessGroup* group, Votes votes = Votes::kSometimes)
      : group_(group), votes_(votes) {}

  // Called at the start of each round; with a group, by all ranks equally
  // often. Once true, always true. Throws CommunicationError.
  bool Ask();

  // For kEveryRound, once after the loop, on every rank: `failed` if this one
  // can't go on. Returns whether any rank failed; those that were still in
  // their loops have left them in the round in which it did. Without a group,
  // `failed`. Throws CommunicationError.
  bool Leave(bool failed);

 private:
  void Vote(bool failed);

  ProcessGroup* const group_;
  const Votes votes_;
  bool stop_ = false;
  bool failed_ = false;   // some rank has
  int64_t interval_ = 1;  // rounds from the last vote to the next
  int64_t left_ = 1;      // rounds until then
  std::chrono::steady_clock::time_point voted_ =
      std::chrono::steady_clock::now();
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_AGREE_H_
