// SPDX-License-Identifier: Apache-2.0
//
// Plays many schedules, in several processes, each of which plays some and
// ends, so that what the dead of a simulation leave in memory goes with it.
#ifndef CAPSTAN_TESTS_SIM_BATCH_H_
#define CAPSTAN_TESTS_SIM_BATCH_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace capstan::sim {

struct BatchOptions {
  int64_t first = 1;
  int64_t count = 1000;
  int ranks = 48;         // at most, in all
  int jobs = 2;           // processes at a time
  int most_failures = 1;  // ends after so many
  double seconds = 1e9;   // begins no more after them
};

struct BatchResult {
  int64_t played = 0;
  double seconds = 0.0;
  // Seeds and what they violate.
  std::vector<std::pair<uint64_t, std::string>> failures;
};

BatchResult PlayMany(const BatchOptions& options);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_BATCH_H_
