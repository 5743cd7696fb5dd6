// SPDX-License-Identifier: Apache-2.0
//
// An objective's metrics (LossSum::metrics) over micro-batches and ranks: sums,
// or the greatest value where the tag ends in "_max".
#ifndef CAPSTAN_TRAINER_SESSION_METRIC_SUMS_H_
#define CAPSTAN_TRAINER_SESSION_METRIC_SUMS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// The names of StepInFlight::metrics: the objective's (MetricTags::train), then
// those of Fp8Underflow, if it counts.
std::vector<std::string> StepMetricTags(const RunParts& parts);

class MetricSums {
 public:
  // `tags`: of each row of the metrics.
  explicit MetricSums(std::vector<std::string> tags);

  // *sum = what `metrics` [rows, 2] of another micro-batch add to it;
  // undefined: none so far.
  void Add(const at::Tensor& metrics, at::Tensor* sum) const;

  // What is summed over ranks, numbers(ranks) float64: the sums and, as only
  // sums are reduced, a place for each rank's greatest values.
  at::Tensor ForRanks(const at::Tensor& sum, int rank, int ranks) const;
  int64_t numbers(int ranks) const;

  // From those sums: by tag, without those of which no rank had any.
  TaggedNumbers Numbers(absl::Span<const double> sums, int ranks) const;

 private:
  const std::vector<std::string> tags_;
  std::vector<int64_t> greatest_;  // rows
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_METRIC_SUMS_H_
