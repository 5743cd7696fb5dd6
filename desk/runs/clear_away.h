// SPDX-License-Identifier: Apache-2.0
//
// `runs gc`: which runs a rule has removed, and why the others stay.
#ifndef CAPSTAN_DESK_RUNS_CLEAR_AWAY_H_
#define CAPSTAN_DESK_RUNS_CLEAR_AWAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "desk/run_folder/run_record.h"

namespace capstan {

// What stays, of the runs of each name; at least one of the three is set.
struct ClearRule {
  absl::optional<int64_t> newest;       // so many that began last
  absl::optional<std::string> best;     // the one with the best such metric
  absl::optional<double> younger_days;  // those that began since
  // Removes checkpoints/ alone, of runs that have their newest weights in
  // final/.
  bool only_checkpoints = false;
};

// A run, and what becomes of it.
struct Verdict {
  const ListedRun* run = nullptr;
  std::string keeps;  // why it stays; "": it goes
  int64_t bytes = 0;  // that go
};

// One for each of `runs`, by name, the newest first. Whatever the rule, a run
// stays that is running or tagged, or whose folder is named by the config of
// another of `others`, which are all runs that are known: as the weights that
// it starts from, say. So does a folder that lacks what every run writes, or
// has another run in it.
std::vector<Verdict> Judge(const std::vector<ListedRun>& runs,
                           const std::vector<ListedRun>& others,
                           const ClearRule& rule, absl::Time now);

// Removes what `verdict`, of one that goes, says; the run's name's `latest`
// then is the newest that is left. Holds the run's folder meanwhile: an error
// if a run has begun there, or the run was tagged since the verdict.
absl::Status Remove(const Verdict& verdict, bool only_checkpoints);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUNS_CLEAR_AWAY_H_
