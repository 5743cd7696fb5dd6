// SPDX-License-Identifier: Apache-2.0
//
// From what each row is worth to a task's and a group's numbers, as the
// Language Model Evaluation Harness sums up (lm_eval/api/metrics.py, group.py).
#ifndef CAPSTAN_INFERENCE_EVALUATE_AGGREGATE_H_
#define CAPSTAN_INFERENCE_EVALUATE_AGGREGATE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "inference/evaluate/task_suite.h"

namespace capstan::evaluate {

// "mean", "median", "nanmean", "perplexity", "weighted_perplexity",
// "bits_per_byte", "brier_score", "f1", "matthews_corrcoef", "bypass",
// "weighted_f1", "macro_f1", "micro_f1", "likelihood_diff".
bool IsAggregation(absl::string_view name);

// What a row's value is. NaN is null.
enum class ValueShape {
  kAny,
  kNumber,
  kWeighted,  // [log_likelihood, weight]
  kClasses,   // [gold, predicted]
  kChoices,   // [gold, [one number for each choice]]
};
// Of the values that an aggregation sums up.
ValueShape ShapeFor(absl::string_view aggregation);
// "numbers", "pairs [gold, predicted]".
const char* ShapeName(ValueShape shape);

// `values`, at least one, in the rows' order. INVALID_ARGUMENT for values that
// the aggregation isn't defined for.
absl::StatusOr<TaskNumber> Aggregate(
    absl::string_view aggregation,
    const std::vector<nlohmann::ordered_json>& values);

// A number of a group, from its tasks' numbers and sizes.
struct Share {
  double value = 0.0;
  absl::optional<double> standard_error;
  int64_t size = 0;
};
TaskNumber AggregateShares(const std::vector<Share>& shares,
                           bool weight_by_size);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_AGGREGATE_H_
