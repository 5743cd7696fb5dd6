// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_RESTARTS_H_
#define CAPSTAN_TRAINER_LAUNCHER_RESTARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/launcher/place.h"

namespace capstan {

// How often a run's ranks are started again.
class Restarts {
 public:
  // So many deaths with no step finished between them end a run, and so many
  // after the same step: the next start would end as they did.
  static constexpr int kFruitless = 3;

  // most: launch.max_restarts.
  explicit Restarts(int most) : most_(most) {}

  bool on() const { return most_ > 0; }
  // So far.
  int done() const { return done_; }

  // The ranks have died, after `step` (negative: before they had finished one
  // since they were started), or have given up a host. Whether to start them
  // again; if so, counts it.
  bool Again(int64_t step, bool gave_up_host = false);

  // After a death: "after step 41", "before the first step".
  std::string When() const;
  // " (1 of 3)", after Again.
  std::string Count() const;
  // What an error adds that ends the run; "": nothing.
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

// `place` when the hosts in `gone` ("1,3") are given up, which ranks of the
// others have said: fewer hosts and ranks, numbered anew in the same order. If
// the first host is one of them, the ranks that are left meet at the first of
// their own. `hosts`: as NoteHosts, becomes that of the hosts left. UNAVAILABLE
// if this host is one of those given up.
absl::StatusOr<Place> PlaceWithout(const Place& place, absl::string_view gone,
                                   std::string* hosts);

// `count` new files of memory, which no program that is started inherits.
absl::StatusOr<std::vector<int>> MirrorFiles(int count);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_RESTARTS_H_
