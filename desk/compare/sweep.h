// SPDX-License-Identifier: Apache-2.0
//
// A sweep: points of settings, each trained with some seeds, and what their
// metric came to. docs/compare.md has its rules.
#ifndef CAPSTAN_DESK_COMPARE_SWEEP_H_
#define CAPSTAN_DESK_COMPARE_SWEEP_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "desk/compare/compare_config.h"
#include "desk/run_folder/line_follower.h"
#include "host/config/load_config.h"

namespace capstan {

// The run of a point with a seed.
struct SweepRun {
  enum class Status { kPending, kStopped, kFailed, kCompleted };

  std::string id;  // its folder: "03-learning_rate_1e_3-seed2"
  uint64_t seed = 0;
  RunConfig config;
  Status status = Status::kPending;
  std::string reason;            // why it failed
  absl::optional<double> value;  // of the metric
  int64_t steps = 0;
};

struct SweepPoint {
  std::vector<std::pair<std::string, std::string>> settings;  // field, value
  std::vector<SweepRun> runs;
  // The step after which it was ended early; 0: it wasn't.
  int64_t ended_at = 0;

  // Over the runs that have a value (Summarize). The deviation is that of a
  // sample, of two or more.
  absl::optional<double> mean;
  absl::optional<double> deviation;
  absl::optional<double> best;

  // "learning_rate=1e-3 strategy=capstan.ddp"
  std::string Label() const;
};

struct Sweep {
  std::string name;
  std::string time;  // start time, for display
  std::string device;
  std::string metric;
  bool lower_is_better = true;
  int64_t max_steps = 0;  // 0: the points have epochs
  int at_once = 1;
  std::vector<SweepPoint> points;
  std::string config_text;
  std::string shared_config_text;
};

// The points in listed order (the last setting of a grid varies fastest) with
// the configs of their runs, all but output_dir. Errors name the setting.
absl::StatusOr<std::vector<SweepPoint>> PointsOf(const LoadedCompare& loaded,
                                                 const ConfigContext& context);

// Computes mean, deviation and best of the point's values.
void Summarize(bool lower_is_better, SweepPoint* point);

// The indexes of the points, the best mean first; those without one last.
std::vector<size_t> Ranking(const Sweep& sweep);

// The steps after which a halving judges, ascending, below `max_steps`.
std::vector<int64_t> Rungs(const CompareConfig::Sweep::Halving& halving,
                           int64_t max_steps);

// Of `alive` points, by their means, those that go on: one in `factor`, rounded
// up. None goes on without a mean.
std::vector<size_t> Survivors(const Sweep& sweep,
                              const std::vector<size_t>& alive, int factor);

// What the metric is after `step` steps of the run in `folder`: an
// evaluation's last value, of steps the mean over the last tenth of them. Unset
// if there is none, or it isn't finite.
absl::optional<double> MetricAt(const std::string& folder,
                                const std::string& metric, int64_t step);

// Follows a run to a step that a halving judges it after. One thread.
class RungFollower {
 public:
  // `eval_every`: the run's.
  RungFollower(const std::string& folder, std::string metric, int64_t step,
               int64_t eval_every);

  // Whether the run has done the step and, for the metric of an evaluation, the
  // last one that was due by then.
  bool Reached();

 private:
  LineFollower lines_;
  const std::string metric_;
  const int64_t step_;
  const int64_t evaluation_;  // the step that it is due after; 0: none is
  int64_t done_ = 0;
  int64_t measured_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_SWEEP_H_
