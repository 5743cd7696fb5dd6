// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a run stop in the midst of an evaluation or a sample.
#ifndef CAPSTAN_TRAINER_SESSION_STOP_H_
#define CAPSTAN_TRAINER_SESSION_STOP_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Tells a loop when to break off because a signal has asked the run to stop.
// Where the loop's body holds collectives, all ranks must leave it in the same
// round, so they vote; elsewhere each rank looks at its own signal.
class StopPoll {
 public:
  // `group` is null where the body holds no collectives. Not owned.
  explicit StopPoll(ProcessGroup* group) : group_(group) {}

  // Called at the start of each round, with a group by all ranks equally often.
  // Votes about ten times a second, however short the rounds are: the next one
  // is set by the mean time of a round, which the vote itself carries. Once
  // true, always true. Throws CommunicationError.
  bool Ask();

 private:
  ProcessGroup* const group_;
  bool stop_ = false;
  int64_t rounds_ = 1;  // from the last vote to the next
  int64_t left_ = 1;
  std::chrono::steady_clock::time_point voted_ =
      std::chrono::steady_clock::now();
};

// CANCELLED if a signal has come to this rank.
absl::Status StopStatus();

// Ends a part of the work that a signal may have broken off: `mine` is this
// rank's outcome, CANCELLED if it has left its loop because of StopPoll.
// Returns an error if a rank has one (AgreeOnError, with `what`); else
// CANCELLED on all ranks if any was stopped, which all then know by
// StopRequested. Collective.
absl::Status AgreeOnStop(ProcessGroup& group, const absl::Status& mine,
                         const char* what);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STOP_H_
