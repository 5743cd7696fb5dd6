// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_WITNESS_FAILURES_H_
#define CAPSTAN_TRAINER_SESSION_WITNESS_FAILURES_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/session/host_failures.h"
#include "trainer/session/session.h"

namespace capstan {

// What a rank's witness has seen to fail, until all ranks are told.
class WitnessFailures {
 public:
  // What makes several failures one event: of a step those with one rank to
  // blame, and one operation or memory.
  struct Blame {
    int rank = -1;  // -1: none
    std::string what;
    bool operator<(const Blame& b) const {
      return std::tie(rank, what) < std::tie(b.rank, b.what);
    }
  };

  // `session` outlives this.
  explicit WitnessFailures(Session* session);

  // Takes over what the ranks before a restart have counted of the run's hosts.
  // Collective.
  absl::Status Begin();
  // Thread-safe.
  void Add(Blame blame, std::string text);
  // Tells the failures of all ranks since the last call as those of step
  // `step`. An error if a host has had too many, which is then left out; or if
  // weights or state of any rank are `lost`, for which the process ends itself
  // where it will be restarted. Collective.
  absl::Status Tell(int64_t step, bool lost);

  // Of all ranks, so far; and since the call of Tell before the last.
  int64_t all() const { return all_; }
  int64_t latest() const { return latest_; }

 private:
  // What all ranks learn of a rank.
  struct Told {
    std::string host;
    int node = 0;
    std::vector<std::string> blamed;  // ranks, one for each event
    std::vector<std::string> texts;
  };

  absl::StatusOr<std::vector<Told>> FromAll();
  // The error by which the run ends, if it does for a host's failures.
  absl::Status Judge(const std::vector<Told>& all, int64_t step);
  absl::Status LeaveOut(const std::string& host, int node);

  Session& session_;
  const std::string host_;
  HostFailures hosts_;
  int64_t all_ = 0;
  int64_t latest_ = 0;

  std::mutex mutex_;  // for what follows
  std::vector<std::string> texts_;
  std::set<Blame> blames_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_WITNESS_FAILURES_H_
