// SPDX-License-Identifier: Apache-2.0
//
// Groups of tasks, as the Language Model Evaluation Harness has them
// (lm_eval/api/group.py): a file that names its members and how their numbers
// become the group's.
#ifndef CAPSTAN_INFERENCE_EVALUATE_TASK_GROUP_H_
#define CAPSTAN_INFERENCE_EVALUATE_TASK_GROUP_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/evaluate/run_task.h"
#include "inference/evaluate/task.h"

namespace capstan::evaluate {

// A metric that a group sums up.
struct GroupMetric {
  std::string name;
  std::vector<std::string> filters;  // "none" where there is none; empty: all
  bool weight_by_size = true;
};

struct TaskGroup {
  std::string name;
  std::string alias;  // empty: the name
  std::vector<GroupMetric> metrics;
  // All tasks below it, of TaskTree::tasks.
  std::vector<size_t> tasks;
};

// Tasks and groups in the order in which they are shown.
struct TaskTree {
  struct Row {
    int depth = 0;
    bool is_group = false;
    size_t index = 0;  // of groups or tasks
  };
  std::vector<Task> tasks;  // each once; no two have one name
  std::vector<TaskGroup> groups;
  std::vector<Row> rows;
};

// Adds the task or the group of a file, or all of a folder's. Members are
// looked for below the file's folder, then below each folder above it up to one
// that is called "tasks", by their names or by tags. INVALID_ARGUMENT names the
// file of what is wrong.
absl::Status AddTasks(const std::string& path, TaskTree* tree);

// A group's numbers, from all tasks' results.
std::vector<TaskNumber> GroupNumbers(const TaskGroup& group,
                                     const std::vector<TaskResult>& results);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_TASK_GROUP_H_
