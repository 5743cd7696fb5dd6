// SPDX-License-Identifier: Apache-2.0
//
// What is done to generated texts before they are compared, as the Language
// Model Evaluation Harness's filters do (lm_eval/filters).
#ifndef CAPSTAN_INFERENCE_EVALUATE_TASK_FILTER_H_
#define CAPSTAN_INFERENCE_EVALUATE_TASK_FILTER_H_

#include <cstdint>
#include <memory>
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
  struct Step {
    enum Kind {
      kRegex,
      kMultiChoiceRegex,  // of the row's `choices`, else as kRegex
      kRemoveWhitespace,
      kLowercase,
      kUppercase,
      kMap,
      kTakeFirst,
      kTakeFirstK,
      kMajorityVote,
    };
    Kind kind = kTakeFirst;
    // kRegex, kMultiChoiceRegex: this of the pattern's matches, from the end if
    // negative, else `fallback`.
    std::shared_ptr<const Pattern> pattern;
    int64_t group_select = 0;
    std::string fallback;
    // kMultiChoiceRegex: how texts and choices are rewritten.
    ExactMatchOptions rewrite;
    // kMap: texts by texts, null for what isn't there; kTakeFirstK: a number.
    nlohmann::ordered_json value;
  };
  std::string name;  // follows the metrics' names; may be empty
  std::vector<Step> steps;

  // Of all that was generated for a row; at least one is left.
  // INVALID_ARGUMENT if a step needs a column that the row doesn't have, or its
  // pattern costs too much to search for.
  absl::StatusOr<std::vector<std::string>> Apply(
      std::vector<std::string> texts, const nlohmann::ordered_json& row) const;
};

// The filters of `filter_list`; mistakes go to `keys`.
std::vector<TaskFilter> ReadFilters(TaskKeys* keys);

// The options of an exact match.
ExactMatchOptions ReadExactMatch(const char* key, const YAML::Node& node,
                                 TaskKeys* keys);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_TASK_FILTER_H_
