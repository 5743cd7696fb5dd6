// SPDX-License-Identifier: Apache-2.0
//
// A run's eval_tasks, and what their numbers are called in it.
#ifndef CAPSTAN_TRAINER_SESSION_EVAL_TASKS_H_
#define CAPSTAN_TRAINER_SESSION_EVAL_TASKS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "host/config/run_config.pb.h"
#include "inference/evaluate/task_suite.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// Opens libcapstan_evaluate.so, which a clone builds at its first use, and has
// it read the tasks. `tokenizer`: null if the data has none. Errors say what to
// change.
absl::StatusOr<std::shared_ptr<const evaluate::TaskSuite>> OpenEvalTasks(
    const EvalTasks& tasks, Model& model, const Tokenizer* tokenizer);

// The tag (TaggedNumbers) of a task's or a group's number: "eval/TASK_acc",
// "eval/TASK_exact_match_FILTER".
std::string TaskTag(const std::string& task, const std::string& metric);
// The names in metrics.jsonl that the tasks' numbers will have, tasks' first.
std::vector<std::string> TaskMetricNames(const evaluate::TaskSuite& suite);
// What a task says of a metric by its name in metrics.jsonl.
absl::optional<bool> HigherIsBetter(const std::string& metric,
                                    const evaluate::TaskSuite& suite);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EVAL_TASKS_H_
