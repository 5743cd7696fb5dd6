// SPDX-License-Identifier: Apache-2.0
//
// Tasks in the format of the Language Model Evaluation Harness (EleutherAI,
// lm_eval, docs/task_guide.md): a YAML file that says how a row of data becomes
// a prompt, what answers there are and what is counted. What needs Python
// (`!function`, `process_docs`) is refused.
#ifndef CAPSTAN_TRAINER_EVALUATE_TASK_H_
#define CAPSTAN_TRAINER_EVALUATE_TASK_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/evaluate/text_scores.h"

namespace capstan::evaluate {

using Json = nlohmann::ordered_json;

enum class TaskOutput {
  kMultipleChoice,  // the likeliest of several continuations
  kLogLikelihood,   // of one continuation
  kGenerateUntil,   // a text that the model writes
};

struct TaskMetric {
  // multiple_choice: "acc", "acc_norm"; loglikelihood: "acc", "perplexity";
  // generate_until: "exact_match", "rouge_l".
  std::string name;
  ExactMatchOptions exact;
};

// What is done to a generated text before it is compared.
struct TaskFilter {
  struct Step {
    enum Kind { kRegex, kRemoveWhitespace, kLowercase, kUppercase, kTakeFirst };
    Kind kind = kTakeFirst;
    // kRegex: this of the pattern's matches, from the end if negative, else
    // `fallback`.
    std::shared_ptr<const Pattern> pattern;
    int64_t group_select = 0;
    std::string fallback;
  };
  std::string name;  // follows the metrics' names; may be empty
  std::vector<Step> steps;

  std::string Apply(std::string text) const;
};

struct Task {
  std::string path;  // of its file, for errors
  std::string name;
  TaskOutput output = TaskOutput::kMultipleChoice;
  // A column's name or a template; target: also a number, a choice's index;
  // choices: also a list.
  std::string doc_to_text;
  Json doc_to_target;
  Json doc_to_choice;
  std::string description;
  std::string target_delimiter = " ";
  std::string fewshot_delimiter = "\n\n";
  int64_t num_fewshot = 0;
  std::vector<std::string> until;
  int64_t max_tokens = 256;
  bool sample = false;  // else greedy
  double temperature = 1.0;
  std::vector<TaskMetric> metrics;
  std::vector<TaskFilter> filters;  // at least one for kGenerateUntil
  // Files that the task itself names, absolute; empty: none.
  std::string docs_file;
  std::string fewshot_file;
};

// INVALID_ARGUMENT names the file, and the key or the line.
absl::StatusOr<Task> LoadTask(const std::string& path);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_TRAINER_EVALUATE_TASK_H_
