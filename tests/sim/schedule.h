// SPDX-License-Identifier: Apache-2.0
//
// What happens to a simulated run: a seed makes a schedule, Play plays it and
// checks the invariants, Shrink finds its shortest failing part.
#ifndef CAPSTAN_TESTS_SIM_SCHEDULE_H_
#define CAPSTAN_TESTS_SIM_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "testing/sim/world.h"

namespace capstan::sim {

struct Fault {
  enum Kind {
    kKillRank,
    kStopRank,
    kKillLauncher,
    kCrashHost,
    kPowerCut,  // of all hosts
    kPauseHost,
    kPartition,
    kIsolate,  // a host from all others
    kFullDisk,
    kSlowDisk,
    kDiskErrors,
    kSkewClock,
    kStopJob,    // SIGTERM to all launchers
    kSecondRun,  // in the same folder
    kKinds,
  };
  Kind kind = kKillRank;
  Time at = 0;
  int host = 0;
  int other = 0;  // rank or host
  Time length = 0;

  std::string Text() const;
};

struct Schedule {
  uint64_t seed = 0;
  int hosts = 1;
  int ranks_per_host = 1;
  int steps = 8;
  int save_every = 2;
  int keep = 2;
  int max_restarts = 3;
  bool shrinks = false;    // goes on with fewer hosts
  bool published = false;  // rank 0's address is in a file
  std::vector<Fault> faults;

  std::string Text() const;
};

// `most_ranks` limits hosts * ranks_per_host.
Schedule MakeSchedule(uint64_t seed, int most_ranks);

struct Outcome {
  std::string violation;  // "": none
  std::string kind;       // the invariant's name
  uint64_t trace = 0;
  int64_t switches = 0;
  Time length = 0;
  int jobs = 0;
  std::vector<std::string> story;
};

Outcome Play(const Schedule& schedule, bool tell);

// Plays in a process of its own, so that nothing of one schedule is left for
// the next, and all see the same.
Outcome PlayAlone(const Schedule& schedule, bool tell);

// Drops faults as long as what `play` returns violates the same invariant.
Schedule Shrink(const Schedule& schedule, const std::string& kind,
                const std::function<Outcome(const Schedule&)>& play);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_SCHEDULE_H_
