// SPDX-License-Identifier: Apache-2.0
//
// Agreement between ranks: on an error, a number, or stopping.
//
// All functions are collective, and throw CommunicationError unless they return
// a Status.
#ifndef CAPSTAN_CLUSTER_COMM_AGREE_H_
#define CAPSTAN_CLUSTER_COMM_AGREE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Ends a phase of the run (phase_group.h) and is a barrier. Returns OK if
// `mine` is OK on all ranks. Otherwise a rank that failed gets its own error,
// and the others one that IsLostPeer, "rank R could not WHAT", where R is the
// first failed rank and WHAT is what(R) ("write out/state-00001"). Throws
// CommunicationError.
//
// In a PhaseGroup the phase may contain collectives: an error of one rank
// aborts the others' collectives, which then call Agree; afterwards the group
// can be used again.
absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const std::function<std::string(int rank)>& what);

// Like the above, for work that all ranks share. Doesn't throw; a rank that
// lost the others returns at once.
absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const char* what);

// Like Agree, after a phase with collectives in any group. Without a
// PhaseGroup, a rank that failed returns at once, since the others may be
// inside a collective; they fail when its process ends.
absl::Status AgreeAfterCollectives(ProcessGroup& group,
                                   const absl::Status& mine, const char* what);

// Ends a phase with collectives whose failure the run survives. `mine` is an
// error if this rank has not completed all of them. If any rank has not, the
// others abandon the phase, too; each rank that did so calls `finish` while its
// collectives are no-ops (PhaseGroup::StopCommunicating), so that the strategy
// ends its pass. Returns whether the phase was abandoned. Returns an error,
// which no rank survives, if `finish` fails or if this rank failed and the
// group is no PhaseGroup. Doesn't throw.
absl::StatusOr<bool> BrokeOff(ProcessGroup& group, const absl::Status& mine,
                              const char* what,
                              const std::function<void()>& finish);

// Logical OR over the ranks.
absl::StatusOr<bool> AnyRank(ProcessGroup& group, bool mine);

// Returns each rank's `mine`, by rank.
std::vector<double> FromAllRanks(ProcessGroup& group, double mine);
std::vector<std::string> FromAllRanks(ProcessGroup& group,
                                      const std::string& mine);

// Gathers `bytes` bytes of host memory from each rank; those of rank r begin at
// all + r * bytes.
void AllGatherHost(ProcessGroup& group, const void* mine, size_t bytes,
                   void* all);
// Like the above, for mine.size() elements, the same number on all ranks.
template <typename T>
std::vector<T> AllGatherHost(ProcessGroup& group, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable<T>::value, "it is sent as bytes");
  std::vector<T> all(group.size() * mine.size());
  AllGatherHost(group, mine.data(), mine.size() * sizeof(T), all.data());
  return all;
}

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
// (as Agree); otherwise CANCELLED on all ranks if any was stopped, and
// StopRequested then returns the signal on all. Doesn't throw.
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

#endif  // CAPSTAN_CLUSTER_COMM_AGREE_H_
