// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_ROW_VALUES_H_
#define CAPSTAN_INFERENCE_EVALUATE_ROW_VALUES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/evaluate/aggregate.h"
#include "inference/evaluate/requests.h"
#include "inference/evaluate/scorer.h"

namespace capstan::evaluate {

// What the model said to a request.
struct Answer {
  // Of the continuations, question by question.
  std::vector<Score> scores;
  std::vector<std::string> texts;
};

// The names of the metrics that a task's output can have.
const std::vector<std::string>& MetricsOf(TaskOutput output);
// The aggregation that a metric has unless the task says another; "mean" for
// names that aren't known.
std::string AggregationOf(const std::string& metric);
// Of the values that a metric gives itself, without process_results.
ValueShape ShapeOf(const std::string& metric);

// What the answer counts for: the metrics' values by name, as Aggregate takes
// them, each name with the filter's behind a comma unless that is empty. In the
// harness's order. An error names the request's place.
absl::StatusOr<Json> ValuesOf(const Task& task, const Request& request,
                              const Answer& answer);

// The names of those values; process_results may give more.
std::vector<std::string> ValueNames(const Task& task);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_ROW_VALUES_H_
