// SPDX-License-Identifier: Apache-2.0
//
// What is done to generated texts before they are compared, as the Language
// Model Evaluation Harness's filters do (lm_eval/filters).
#ifndef CAPSTAN_INFERENCE_EVALUATE_TASK_FILTER_H_
#define CAPSTAN_INFERENCE_EVALUATE_TASK_FILTER_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/evaluate/text_scores.h"

namespace YAML {
class Node;
}  // namespace YAML

namespace capstan::evaluate {

class TaskKeys;

struct TaskFilter {
  using Texts = std::vector<std::string>;
  // Takes all texts that were generated for a row and returns those that are
  // left, at least one. INVALID_ARGUMENT if it needs a column that the row
  // doesn't have, or its pattern costs too much to search for.
  using Step = std::function<absl::StatusOr<Texts>(
      Texts texts, const nlohmann::ordered_json& row)>;

  std::string name;  // follows the metrics' names; may be empty
  std::vector<Step> steps;

  // Applies the steps in order.
  absl::StatusOr<Texts> Apply(Texts texts,
                              const nlohmann::ordered_json& row) const;
};

// A step that changes each text by itself.
TaskFilter::Step EachText(
    std::function<absl::StatusOr<std::string>(const std::string& text)> change);

// The filters of `filter_list`; mistakes go to `keys`.
std::vector<TaskFilter> ReadFilters(TaskKeys* keys);

// The options of an exact match.
ExactMatchOptions ReadExactMatch(const char* key, const YAML::Node& node,
                                 TaskKeys* keys);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_TASK_FILTER_H_
