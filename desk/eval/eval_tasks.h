// SPDX-License-Identifier: Apache-2.0
//
// The parts of `trainer eval`: the loss on data (eval_command.cc) and tasks,
// for which a model is asked (eval_tasks.cc).
#ifndef CAPSTAN_DESK_EVAL_EVAL_TASKS_H_
#define CAPSTAN_DESK_EVAL_EVAL_TASKS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "inference/load/generator.h"
#include "plugins/sdk/process_group.h"
#include "trainer/metrics/progress_bar.h"

namespace capstan {

struct EvalOptions {
  std::string model;
  AdapterOptions adapter;
  std::vector<std::string> configs;  // empty: the run that made the model
  // Of tasks a file of rows, or a folder with a TASK.jsonl for each. Empty: the
  // run's evaluation data, or what a task names.
  std::string data;
  int64_t batch_size = 0;   // samples per forward; 0: the run's, of tasks 8
  int64_t max_batches = 0;  // 0: all data
  bool loss_only = false;
  int64_t generate = 0;  // samples to answer; 0: none
  int64_t max_new_tokens = 256;
  // Files of tasks or groups, or folders; empty: loss on data.
  std::vector<std::string> tasks;
  std::string fewshot_data;
  absl::optional<int64_t> num_fewshot;  // unset: the task's
  int64_t max_samples = 0;              // of each task; 0: all
  int64_t bound_samples = 128;          // BoundSettings::samples
  bool chat = false;
  bool json = false;
  std::string output;                  // folder; empty: write nothing
  std::string weights = "stored";      // of tasks; see model_flags.h
  std::vector<std::string> overrides;  // of eval_data, objective etc.
  std::vector<std::string> rest;       // flags of the objective
  std::vector<std::string> plugin_path;
};

// Samples or requests of one forward, where neither flags nor a run say it.
constexpr int64_t kDefaultEvalBatch = 8;

// Calls `evaluate` on a rank for each GPU if the generator is for GPUs, after
// BindOn, else on as many ranks as there are cores for, limited by what shares
// a machine's memory well; in any case at most one for each of `batches`. Then
// `report` on rank 0. Returns the exit code.
int LaunchEvaluation(const EvalOptions& options, Generator* generator,
                     int64_t batches,
                     const std::function<absl::Status(ProcessGroup& group,
                                                      WorkBar& bar)>& evaluate,
                     const std::function<absl::Status(double seconds)>& report);

// Runs the tasks, prints their numbers and returns the exit code.
absl::StatusOr<int> EvalTasks(const EvalOptions& options);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EVAL_EVAL_TASKS_H_
