// SPDX-License-Identifier: Apache-2.0
//
// What a run is doing, in numbers for monitoring: progress, speed, goodput,
// memory, the rank that others wait for.
#ifndef CAPSTAN_DESK_TRACK_MEASURES_H_
#define CAPSTAN_DESK_TRACK_MEASURES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "desk/track/follower.h"
#include "desk/track/run_folder.h"

namespace capstan::track {

struct Measure {
  struct Value {
    int rank = -1;  // -1: of the run
    double value = 0.0;
  };

  // As Prometheus names it, but for the prefix: "tokens_per_second". A
  // counter's name ends with _total.
  const char* name;
  const char* help;
  const char* unit;  // as UCUM has it, for OTLP: "s", "By", "1"
  bool counter = false;
  std::vector<Value> values;  // one, or one a rank
};

struct Measures {
  std::string run;  // TrackedRun::name
  std::string folder;
  std::string id;
  double start_time = 0.0;  // Unix seconds
  double time = 0.0;        // that these were taken
  // In percent; unset without a number of steps to go to.
  absl::optional<double> progress;
  absl::optional<double> seconds_left;  // 0: it has ended
  std::vector<Measure> list;            // those that are known

  // Of the measure of that name, of the run; unset if it isn't known.
  absl::optional<double> Get(const std::string& name) const;
};

// Adds up what rows say. One thread.
class Meter {
 public:
  // Each row once. `begins`: Follower::begins.
  void Add(const Row& row, const std::vector<double>& begins);

  // Of late; 0: not known.
  double step_seconds() const { return mean_seconds_; }

  // As of now, or of the run's end, with the follower's newest row. Reads the
  // ends of the ranks' files.
  Measures Take(const Follower& follower, const Settings& settings,
                const RunState& state) const;

 private:
  Measures Now(const Follower& follower, const Settings& settings,
               const RunState& state) const;

  absl::optional<double> begin_;  // of the first row's step
  double counted_seconds_ = 0.0;  // in steps that made an update
  double mean_seconds_ = 0.0;     // of a step and what is around it, of late
  int64_t timed_ = 0;             // steps in that mean
  double last_time_ = 0.0;
  int64_t last_step_ = 0;
  int64_t skipped_ = 0;
  Row last_;  // the newest value of each metric
};

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_MEASURES_H_
