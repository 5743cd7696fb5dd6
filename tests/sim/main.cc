// SPDX-License-Identifier: Apache-2.0
//
// Plays schedules:
//   sim [COUNT] [--first=SEED] [--ranks=N] [--jobs=N]
// plays that many, N processes at a time, and of the first that violates an
// invariant prints the seed, the shortest schedule and its story (with
// --until_found only how many it took);
//   sim --seed=SEED [--ranks=N] [--whole]
// plays one and prints its story, of its shortest failing part unless --whole.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/sim/batch.h"
#include "tests/sim/schedule.h"

namespace capstan::sim {
namespace {

int64_t NumberIn(const std::string& word, const std::string& flag,
                 int64_t otherwise) {
  return word.rfind(flag, 0) == 0 ? atoll(word.c_str() + flag.size())
                                  : otherwise;
}

void PrintStory(const Schedule& schedule) {
  const Outcome outcome = PlayAlone(schedule, /*tell=*/true);
  printf("%s", schedule.Text().c_str());
  for (const std::string& line : outcome.story) printf("%s\n", line.c_str());
  printf("%s\n", outcome.violation.empty() ? "no violation"
                                           : outcome.violation.c_str());
}

int PlayOne(uint64_t seed, int ranks, bool whole) {
  Schedule schedule = MakeSchedule(seed, ranks);
  const Outcome outcome = PlayAlone(schedule, /*tell=*/false);
  if (!outcome.violation.empty() && !whole) {
    schedule = Shrink(schedule, outcome.kind, [](const Schedule& shorter) {
      return PlayAlone(shorter, /*tell=*/false);
    });
  }
  PrintStory(schedule);
  return outcome.violation.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  BatchOptions options;
  int64_t seed = -1;
  bool whole = false;
  bool until_found = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    options.first = NumberIn(word, "--first=", options.first);
    options.ranks = static_cast<int>(NumberIn(word, "--ranks=", options.ranks));
    options.jobs = static_cast<int>(NumberIn(word, "--jobs=", options.jobs));
    options.most_failures =
        static_cast<int>(NumberIn(word, "--failures=", options.most_failures));
    seed = NumberIn(word, "--seed=", seed);
    whole |= word == "--whole";
    until_found |= word == "--until_found";
    if (word[0] != '-') options.count = atoll(word.c_str());
  }
  if (seed >= 0) {
    return PlayOne(static_cast<uint64_t>(seed), options.ranks, whole);
  }
  const BatchResult result = PlayMany(options);
  if (until_found && !result.failures.empty()) {
    const auto& [failed, violation] = result.failures.front();
    printf("%ld schedules to a violation: %s\n",
           static_cast<int64_t>(failed) - options.first + 1, violation.c_str());
    return 1;
  }
  printf("%ld schedules in %.1f s (%.0f a second), %zu with a violation\n",
         result.played, result.seconds,
         static_cast<double>(result.played) / result.seconds,
         result.failures.size());
  for (const auto& [failed, violation] : result.failures) {
    printf("seed %lu: %s\n", failed, violation.c_str());
  }
  if (result.failures.empty()) return 0;
  if (options.most_failures == 1) {
    PlayOne(result.failures.front().first, options.ranks, /*whole=*/false);
  }
  return 1;
}

}  // namespace
}  // namespace capstan::sim

int main(int argc, char** argv) { return capstan::sim::Main(argc, argv); }
