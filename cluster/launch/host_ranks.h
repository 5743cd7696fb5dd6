// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_LAUNCH_HOST_RANKS_H_
#define CAPSTAN_CLUSTER_LAUNCH_HOST_RANKS_H_

#include <poll.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/place.h"
#include "cluster/launch/rank_process.h"

namespace capstan {

// The forked ranks of this host, by their local ranks. Prints what they write,
// on standard error. One thread.
class HostRanks {
 public:
  // Forks the ranks of `place`; call once. `info` has what all have in common,
  // and rank 0's socket or -1. `let_go` is called in each child.
  absl::Status Fork(const Place& place, RankInfo info,
                    const std::function<void()>& let_go,
                    const RankMain& rank_main);

  int size() const { return static_cast<int>(ranks_.size()); }
  // The run's number of the first.
  int first() const { return first_; }
  absl::optional<RankOutcome> Outcome(int local) const {
    return ranks_[local]->Outcome();
  }
  bool AllExited() const;
  bool AllHaveOutcome() const;
  // Whether all have ended like this.
  bool AllAre(RankOutcome::Kind kind) const;
  // Of those that have ended by a stop, the one that knows the signal, if any.
  absl::optional<RankOutcome> Stopped() const;

  // Notes which have failed by now. A rank's stop is no failure if it was asked
  // for, by a signal to it or, if `stopping`, to the run.
  void NoteFailures(bool stopping);
  bool failed() const { return !failures_.empty(); }
  // When the first was noted.
  std::chrono::steady_clock::time_point failed_at() const { return failed_at_; }
  // The failure to report: a rank that only lost its peer isn't the cause,
  // unless that holds for all. failed().
  int Cause() const;
  // Its message, with its number unless all say so.
  std::string CauseText() const;
  // The others have died of it.
  void OnlyFailed(int local) { failures_ = {local}; }
  // Whether the watchdog has ended any: others may have failed because of it.
  bool AnyHung() const;

  // The first that is stopped (SIGSTOP), or -1.
  int Frozen() const;

  // Appends what poll is to wait for, and handles what it has found, from the
  // same place on.
  void AddTo(std::vector<pollfd>* fds) const;
  void Handle(const pollfd* fds);
  // After SIGCHLD.
  void Reap();
  void SignalAll(int signal) const;
  // Returns once all have ended.
  void KillAll();
  // Prints what is left.
  void PrintOutputLeft();

 private:
  int first_ = 0;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<int> failures_;  // in order of arrival
  std::chrono::steady_clock::time_point failed_at_;
};

// Prints, whether or not a progress bar has the terminal's line.
void PrintToStderr(absl::string_view text);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_HOST_RANKS_H_
