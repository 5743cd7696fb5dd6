// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_LAUNCH_RESTARTS_H_
#define CAPSTAN_CLUSTER_LAUNCH_RESTARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/launch/place.h"

namespace capstan {

// Decides how often a run's ranks are restarted.
class Restarts {
 public:
  // This many deaths without a finished step between them, or after the same
  // step, end a run, since the next start would end the same way.
  static constexpr int kFruitless = 3;

  // most: launch.max_restarts.
  explicit Restarts(int most) : most_(most) {}

  bool on() const { return most_ > 0; }
  // So far.
  int done() const { return done_; }

  // Returns whether to restart the ranks, and if so counts the restart, after
  // they died after `step` (negative: before they had finished one since their
  // start) or gave up a host.
  bool Again(int64_t step, bool gave_up_host = false);

  // After a death: "after step 41", "before the first step".
  std::string When() const;
  // " (1 of 3)", after Again.
  std::string Count() const;
  // Returns what to append to the error that ends the run, or "".
  std::string Ending() const;

 private:
  const int most_;
  int done_ = 0;
  int fruitless_ = 0;  // deaths in a row
  int64_t step_ = -1;  // the latest finished
  // Of the latest death with a step finished before it.
  int64_t died_after_ = -1;
  bool same_step_ = false;
};

// Returns `place` without the hosts in `gone` ("1,3"), with the remaining hosts
// and ranks renumbered in the same order. If the first host is gone, the ranks
// meet at the first remaining one. Removes the hosts from *hosts, a list as in
// NoteHosts. UNAVAILABLE if this host is in `gone`.
absl::StatusOr<Place> PlaceWithout(const Place& place, absl::string_view gone,
                                   std::string* hosts);

// Creates `count` files in memory (memfd), which are closed on exec.
absl::StatusOr<std::vector<int>> MirrorFiles(int count);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_RESTARTS_H_
