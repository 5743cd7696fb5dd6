// SPDX-License-Identifier: Apache-2.0
//
// Tasks in the format of the Language Model Evaluation Harness (EleutherAI,
// lm_eval, docs/task_guide.md): a YAML file that says how a row of data becomes
// a prompt, what answers there are and what is counted. Of functions in Python
// (`!function`) those of known_functions.h have a form here; others are
// refused.
#ifndef CAPSTAN_INFERENCE_EVALUATE_TASK_H_
#define CAPSTAN_INFERENCE_EVALUATE_TASK_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "inference/evaluate/known_functions.h"
#include "inference/evaluate/task_filter.h"
#include "inference/evaluate/text_scores.h"

namespace capstan::evaluate {

using Json = nlohmann::ordered_json;

enum class TaskOutput {
  kMultipleChoice,  // the likeliest of several continuations
  kLogLikelihood,   // of one continuation
  kRolling,         // of a whole text
  kGenerateUntil,   // a text that the model writes
};

struct TaskMetric {
  std::string name;
  ExactMatchOptions exact;  // of exact_match
  std::string aggregation;  // aggregate.h
  // What the task says of it, if it does.
  absl::optional<bool> higher_is_better;
};

// What becomes of a row.
struct RowField {
  RowField() = default;
  RowField(Json value) : value(std::move(value)) {}  // NOLINT

  bool empty() const { return value.is_null() && function == nullptr; }

  // A column's name or a template; of a target: also a number, a choice's
  // index; of choices: also a list.
  Json value;
  RowFunction function;  // instead, if not null
};

// How a row is written: as a question, or as an example with its answer.
struct RowFormat {
  RowField text;
  RowField target;
  RowField choice;
  RowField prefix;  // begins the answer; may be empty
  std::string target_delimiter = " ";
  std::string fewshot_delimiter = "\n\n";
};

struct Fewshot {
  RowFormat format;
  // Of rows of files; null: as they are.
  RowFunction process_docs;
  // Rows that the task brings itself, before any file's.
  std::vector<Json> samples;
  // The first rows; else drawn at random, as the harness draws them.
  bool first = false;
  // Whether the examples come from the split that is asked.
  bool from_asked = false;
};

struct Task {
  bool HasMetric(absl::string_view name) const;

  std::string path;  // of its file, for errors
  // What its file and its groups say (TaskKeys::AsText).
  std::map<std::string, std::string> keys;
  std::string name;
  std::string alias;  // shown in a group; empty: the name
  std::vector<std::string> tags;
  TaskOutput output = TaskOutput::kMultipleChoice;
  RowFunction process_docs;  // null: rows as they are
  RowFormat format;
  std::string description;  // a column's name, a template, or empty
  int64_t num_fewshot = 0;
  Fewshot fewshot;
  std::vector<std::string> until;
  int64_t max_tokens = 256;
  bool sample = false;  // else greedy
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t repeats = 1;  // texts for each row
  std::vector<TaskMetric> metrics;
  ResultFunction results = nullptr;  // in place of the metrics' own values
  std::vector<TaskFilter> filters;   // at least one for kGenerateUntil
  // Files that the task itself names, absolute; empty: none.
  std::string docs_file;
  std::string fewshot_file;
};

class TaskKeys;

// INVALID_ARGUMENT names the file, and the key or the line.
absl::StatusOr<Task> MakeTask(TaskKeys keys);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_TASK_H_
