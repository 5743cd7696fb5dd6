// SPDX-License-Identifier: Apache-2.0
//
//   sim [FIRST [COUNT]] [--ranks=N] [--tell] [--jobs=N]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "tests/sim/schedule.h"

using namespace capstan::sim;  // NOLINT

int main(int argc, char** argv) {
  uint64_t first = 1;
  int64_t count = 1;
  int ranks = 32;
  bool tell = false;
  int at = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--ranks=", 0) == 0) {
      ranks = atoi(word.c_str() + 8);
    } else if (word == "--tell") {
      tell = true;
    } else if (at++ == 0) {
      first = strtoull(word.c_str(), nullptr, 10);
    } else {
      count = atoll(word.c_str());
    }
  }
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Schedule schedule = MakeSchedule(seed, ranks);
    const Outcome outcome = Play(schedule, tell);
    if (tell) {
      printf("%s", schedule.Text().c_str());
      for (const std::string& line : outcome.story) printf("%s\n", line.c_str());
    }
    printf("seed %lu: %ld switches, %.1f s, %d jobs, trace %lx %s\n", seed,
           outcome.switches, static_cast<double>(outcome.length) / 1e9, outcome.jobs,
           outcome.trace, outcome.violation.c_str());
    fflush(stdout);
  }
}
