// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a comparison: how far each run is from the reference of
// its precision.
#ifndef CAPSTAN_TRAINER_COMPARE_COMPARISON_H_
#define CAPSTAN_TRAINER_COMPARE_COMPARISON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "trainer/compare/compare_config.h"

namespace capstan {

// Bytes of one category of a run's memory, on the rank that holds most.
struct MemoryUse {
  std::string category;  // "parameters", .., "total"
  absl::optional<double> predicted;
  absl::optional<double> measured;
};

// What a run has left in metrics.jsonl and summary.json. What it doesn't say
// is unset.
struct RunMeasurements {
  // One a step; NaN where the run's wasn't finite.
  std::vector<double> loss;
  std::vector<double> grad_norm;
  int64_t skipped_steps = 0;
  int64_t parameters = 0;

  // Medians over the steps, after the first two.
  double step_seconds = 0.0;
  double tokens_per_second = 0.0;  // of `unit`
  std::string unit = "tokens";     // as RunFacts has it
  absl::optional<double> bytes_sent;
  absl::optional<double> communication_seconds;
  // The part of communication that the step has waited for.
  absl::optional<double> exposed_seconds;

  std::vector<MemoryUse> memory;
  // Of the process, largest rank; and how much of it came after its start.
  absl::optional<double> peak_memory_bytes;
  absl::optional<double> memory_growth_bytes;
};

// A curve's relative distance from the reference's, step by step: |a - b| / |b|
// with b the reference's value; infinite where only one of the two is finite,
// 0 where neither is.
struct CurveDelta {
  std::vector<double> values;
  double max = 0.0;
  int64_t max_step = 0;  // 1 for the first
};

CurveDelta DeltaOf(const std::vector<double>& curve,
                   const std::vector<double>& reference);

// One combination of the axes, and what came of it.
struct ComparedRun {
  enum class Status { kPending, kSkipped, kFailed, kCompleted };

  std::string id;  // its folder: "03-ddp-fp32-2"
  std::string strategy;
  std::string precision;
  int processes = 1;
  int64_t accumulation = 1;
  Status status = Status::kPending;
  std::string reason;  // why skipped or failed
  RunMeasurements measured;

  // The run that it is compared with: its own id for the reference, "" where
  // there is none to compare with.
  std::string reference;
  CurveDelta loss_delta;
  CurveDelta grad_norm_delta;

  // "ddp fp32 on 2 ranks"
  std::string Label() const;
};

// How the reference of a precision is from the first precision's; for
// information.
struct PrecisionDistance {
  CurveDelta loss;
  CurveDelta grad_norm;
};

struct ComparedPrecision {
  std::string name;
  CompareBounds bounds;
  std::string reference;  // the run's id; "" if every run of it is refused
  absl::optional<PrecisionDistance> from_first;
};

struct Comparison {
  std::string name;
  std::string time;  // when it began, for people
  std::string config_text;
  std::string shared_config_text;
  int64_t max_steps = 0;
  int64_t global_batch_size = 0;
  std::string device;  // "2 x CPU cores", "8 x GPU"

  std::vector<ComparedPrecision> precisions;
  std::vector<ComparedRun> runs;

  // One sentence each: what Compare found, and the runs that failed.
  std::vector<std::string> problems;
  bool passed() const { return problems.empty(); }

  const ComparedRun* FindRun(const std::string& id) const;
  // What the runs' speed counts.
  std::string Unit() const;
};

// Chooses the references, and fills what depends on them: references, deltas,
// distances of the precisions, problems. The reference of a precision is its
// first listed strategy that accepts any number of ranks, on the fewest.
void Compare(Comparison* comparison);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_COMPARISON_H_
