// SPDX-License-Identifier: Apache-2.0
//
// The part of `trainer eval` that asks a model and reads what it answers.
#ifndef CAPSTAN_TRAINER_COMMANDS_EVAL_TASKS_H_
#define CAPSTAN_TRAINER_COMMANDS_EVAL_TASKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "inference/load/generator.h"

namespace capstan {

// Samples or requests of one forward, where neither flags nor a run say it.
constexpr int64_t kDefaultEvalBatch = 8;

// As many ranks as there are cores for and batches to share, limited by what
// shares a machine's memory well.
int RanksToEvaluate(int64_t batches);

struct EvalTaskOptions {
  std::string model;
  AdapterOptions adapter;
  std::vector<std::string> tasks;  // files of tasks or groups, folders
  // A file, or a folder with a TASK.jsonl for each; empty: what the task names.
  std::string data;
  std::string fewshot_data;
  absl::optional<int64_t> num_fewshot;  // unset: the task's
  int64_t max_samples = 0;              // of each task; 0: all
  int64_t bound_samples = 128;          // BoundSettings::samples
  int64_t batch_size = 0;               // 0: 8
  bool chat = false;
  bool json = false;
  std::string output;                  // folder, absolute; empty: write nothing
  std::string weights = "stored";      // see model_flags.h
  std::vector<std::string> overrides;  // of the objective etc.
  std::vector<std::string> plugin_path;
};

// Runs the tasks, prints their numbers and returns the exit code.
absl::StatusOr<int> EvalTasks(const EvalTaskOptions& options);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_EVAL_TASKS_H_
