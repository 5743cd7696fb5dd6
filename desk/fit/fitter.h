// SPDX-License-Identifier: Apache-2.0
//
// Finds how a config is best run on a machine.
#ifndef CAPSTAN_DESK_FIT_FITTER_H_
#define CAPSTAN_DESK_FIT_FITTER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "desk/fit/candidates.h"
#include "desk/fit/machine.h"
#include "trainer/commands/command.h"

namespace capstan::fit {

enum class Wish { kTime, kMemory, kCost };

struct Question {
  RunOptions run;
  std::vector<std::string> machines;  // files
  Wish wish = Wish::kTime;
  int trials = 4;
  bool again = false;
  bool packing = false;  // whether to ask about other packings, too
  std::function<void(const std::string&)> progress;
};

// What an epoch would take with another packing of rows, at its best.
struct PackedEpoch {
  std::string packing;   // "BEST_FIT"
  double seconds = 0.0;  // 0: it can't be
  std::string way;       // or why it can't be
};

struct Answer {
  std::string run;  // its name
  Machine machine;
  Wish wish = Wish::kTime;
  int64_t global_batch = 0;
  double tokens = 0.0;  // of a row that is trained on, the mean; 0: unknown
  int64_t epoch_rows = 0;
  int64_t steps = 0;
  int64_t own_processes = 0;  // that the config starts on a host
  // Best first; those that can't be are behind, by what they need.
  std::vector<Candidate> candidates;
  std::vector<LeftOut> left_out;
  std::vector<std::string> notes;
  int trials = 0;  // that were run now or earlier
  // The first is the config's own; empty if not asked.
  std::vector<PackedEpoch> packings;

  // What all steps take, in seconds, and cost.
  double Total(const Candidate& one) const;
  double Cost(const Candidate& one) const;
  const Candidate* best() const;  // null: there is none
};

// An error if the config can't be run, or nothing is known of the machine that
// must be.
absl::StatusOr<Answer> Find(const Question& question);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_FITTER_H_
