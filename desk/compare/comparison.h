// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a comparison: each run's distance from its precision's
// reference.
#ifndef CAPSTAN_DESK_COMPARE_COMPARISON_H_
#define CAPSTAN_DESK_COMPARE_COMPARISON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "desk/run_folder/line_follower.h"

namespace capstan {

// How far a run may be from its reference (CompareConfig.Bound).
struct CompareBounds {
  double loss = 0.0;  // relative, as the next one
  double grad_norm = 0.0;
  bool bit_identical = false;
  // Set if the strategy has a curve of its own: OwnCurve::why. Its gradient
  // norm then has no bound, unless the config gives one.
  absl::optional<std::string> own_curve;
  // Multiples of the reference's.
  absl::optional<double> step_time;
  absl::optional<double> peak_memory;

  // "loss 1e-05, gradient norm 0.0001, bit-identical, step time x 1.2"
  std::string Text() const;
};

// Bytes of a memory category on the rank that uses most.
struct MemoryUse {
  std::string category;  // "parameters", .., "total"
  absl::optional<double> predicted;
  absl::optional<double> measured;
};

// A run's results from metrics.jsonl and summary.json; unset where those lack
// them.
struct RunMeasurements {
  // One per step; NaN where it wasn't finite.
  std::vector<double> loss;
  std::vector<double> grad_norm;
  int64_t skipped_steps = 0;
  int64_t parameters = 0;

  // Medians over all but the first two steps.
  double step_seconds = 0.0;
  double tokens_per_second = 0.0;  // of `unit`
  std::string unit = "tokens";     // as RunFacts has it
  absl::optional<double> bytes_sent;
  absl::optional<double> communication_seconds;
  // Communication time that the step waited for.
  absl::optional<double> exposed_seconds;

  std::vector<MemoryUse> memory;
  // That of `memory` with this name; nothing known if there is none.
  MemoryUse Memory(const std::string& category) const;
  // Of the process with the largest value; and its growth since its start.
  absl::optional<double> peak_memory_bytes;
  absl::optional<double> memory_growth_bytes;
};

// A curve's relative distance from the reference's, per step: |a - b| / |b|
// with b the reference's value; infinite if only one of the two is finite, 0 if
// neither.
struct CurveDelta {
  std::vector<double> values;
  double max = 0.0;
  int64_t max_step = 0;  // 1-based
};

CurveDelta DeltaOf(const std::vector<double>& curve,
                   const std::vector<double>& reference);

// A combination of the axes, and its result.
struct ComparedRun {
  enum class Status { kPending, kSkipped, kFailed, kCompleted };

  std::string id;  // its folder: "03-ddp-fp32-2"
  std::string strategy;
  std::string precision;
  int processes = 1;
  int64_t accumulation = 1;
  Status status = Status::kPending;
  std::string reason;  // why it was skipped or failed
  CompareBounds bounds;
  RunMeasurements measured;

  // Id of the run it is compared with: its own for the reference, "" if there
  // is none.
  std::string reference;
  CurveDelta loss_delta;
  CurveDelta grad_norm_delta;

  // "ddp fp32 on 2 ranks"
  std::string Label() const;
};

// Distance of a precision's reference from the first precision's;
// informational.
struct PrecisionDistance {
  CurveDelta loss;
  CurveDelta grad_norm;
};

struct ComparedPrecision {
  std::string name;
  std::string reference;  // the run's id; "" if all its runs are refused
  absl::optional<PrecisionDistance> from_first;
};

struct Comparison {
  std::string name;
  std::string time;  // start time, for display
  std::string config_text;
  std::string shared_config_text;
  int64_t max_steps = 0;
  int64_t global_batch_size = 0;
  std::string device;  // "2 x CPU cores", "8 x GPU"

  std::vector<ComparedPrecision> precisions;
  std::vector<ComparedRun> runs;

  // What Compare found and which runs failed, one sentence each.
  std::vector<std::string> problems;
  bool passed() const { return problems.empty(); }

  const ComparedRun* FindRun(const std::string& id) const;
  // The unit of the runs' throughput.
  std::string Unit() const;
};

// Chooses references and computes everything that depends on them: deltas,
// distances between precisions, problems. A precision's reference is its first
// listed strategy that accepts any number of ranks, on the fewest ranks; one
// with a curve of its own only if there is no other.
void Compare(Comparison* comparison);

// After Compare: problems of runs that aren't bit-identical to their references
// and should be, by the digests that all wrote. `folder` has the runs, by id.
void CompareBits(const std::string& folder, Comparison* comparison);

// Reads the measurements of a finished run of `steps` steps from its folder.
// Errors name the file and what is missing or unexpected.
absl::StatusOr<RunMeasurements> ReadMeasurements(const std::string& folder,
                                                 int64_t steps);

// Tails a growing metrics.jsonl. One thread.
class MetricsFollower {
 public:
  explicit MetricsFollower(std::string path) : lines_(std::move(path)) {}

  // Reads new lines and returns the newest step (0: none yet).
  int64_t Poll();
  // Of that step; unset if it isn't a number.
  absl::optional<double> loss() const { return loss_; }

 private:
  LineFollower lines_;
  int64_t step_ = 0;
  absl::optional<double> loss_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_COMPARISON_H_
