// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WHY_SLOW_SPEED_RECORD_H_
#define CAPSTAN_DESK_WHY_SLOW_SPEED_RECORD_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "desk/run_folder/rank_lines.h"

namespace capstan::why_slow {

using Times = RankTimes;

// A rank, as its newest process saw it.
struct RankRecord : RankFacts {
  int64_t lines = 0;
  // Sums of the first line, of the others in the first half of the lines, of
  // the second half, and of all: a run of weeks has millions of lines.
  Times first;
  Times early;
  Times later;
  Times all;
};

// Numbers of the run's config; 0: unknown or not set.
struct Settings {
  double micro_batch_size = 0.0;
  double global_batch_size = 0.0;
  double sequence_parallel = 1.0;  // ranks that share rows
  double eval_every = 0.0;
  double save_every = 0.0;
  bool saves_in_foreground = false;
  // Sizes of the model that a matrix product has as a dimension, by name.
  std::map<std::string, int64_t> widths;
};

// What a run's folder tells of its speed.
struct SpeedRecord {
  std::string folder;
  std::vector<RankRecord> ranks;  // by number
  Settings settings;
  // Means over the steps of metrics.jsonl that the ranks' newest process did.
  double tokens = 0.0;      // in a step, all ranks
  double bytes_sent = 0.0;  // in a step, rank 0
  std::string unit = "tokens";
  double parameters = 0.0;  // 0: unknown
  // The costliest scopes of profile.json's forward and backward, in seconds of
  // a step; empty without one.
  std::vector<std::pair<std::string, double>> scopes;
};

// Reads the folder of a run, which may be under way. NOT_FOUND: there is no
// record, as of runs of older trainers. What else is missing stays unknown.
absl::StatusOr<SpeedRecord> ReadSpeedRecord(const std::string& folder);

// Reads what `settings` has out of a run's config.pbtxt, named `name`.
absl::Status ReadSettings(const std::string& config_text,
                          const std::string& name, Settings* settings);

}  // namespace capstan::why_slow

#endif  // CAPSTAN_DESK_WHY_SLOW_SPEED_RECORD_H_
