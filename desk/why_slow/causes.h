// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WHY_SLOW_CAUSES_H_
#define CAPSTAN_DESK_WHY_SLOW_CAUSES_H_

#include <string>
#include <vector>

#include "desk/why_slow/speed_record.h"

namespace capstan::why_slow {

// What slows a run, and what undoing it would give.
struct Cause {
  std::string name;    // "late rank"
  std::string text;    // what was seen, with its numbers
  std::string advice;  // what to do
  // Seconds, of a step and what follows it until the next, that undoing this
  // alone would save, for the same tokens.
  double gain = 0.0;
};

// Means over a run's steps; times are seconds per step.
struct Summary {
  double run_steps = 0.0;  // so far, of the newest process
  double wall = 0.0;       // of a step and what follows it until the next
  Times mean;              // of the ranks
  // The rank with the most work of its own, by index; what the others have.
  size_t latest = 0;
  double most_own = 0.0;
  double next_own = 0.0;
  // The least that any rank waits for others: what communication itself takes.
  double communication = 0.0;
};

Summary Summarize(const SpeedRecord& run);

// Seconds of the evaluation at the run's end, if that was the only one; else 0.
double OnlyFinalEvaluation(const SpeedRecord& run);

// By descending gain, each at least 2 % of the run's time. Causes overlap where
// their texts say so, and gains don't add up.
std::vector<Cause> FindCauses(const SpeedRecord& run, const Summary& summary);

}  // namespace capstan::why_slow

#endif  // CAPSTAN_DESK_WHY_SLOW_CAUSES_H_
