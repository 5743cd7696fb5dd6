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
#include "plugins/sdk/dataset.h"
#include "trainer/commands/generator.h"
#include "trainer/evaluate/run_task.h"

namespace capstan {

// Samples or requests of one forward, where neither flags nor a run say it.
constexpr int64_t kDefaultEvalBatch = 8;

// As many ranks as there are cores for and batches to share, limited by what
// shares a machine's memory well.
int RanksToEvaluate(int64_t batches);

// Of the generator, its tokenizer or the data's; one request at a time until
// the caller says otherwise. Nothing is owned.
evaluate::Answerer AnswererOf(const Generator& generator,
                              const Tokenizer& tokenizer, ProcessGroup* group,
                              UnitRunner* runner);

struct EvalTaskOptions {
  std::string model;
  std::string adapter;                  // empty: none
  std::vector<std::string> tasks;       // files
  std::string data;                     // empty: what the task names
  std::string fewshot_data;             // empty: what the task names
  absl::optional<int64_t> num_fewshot;  // unset: the task's
  int64_t max_samples = 0;              // of each task; 0: all
  int64_t batch_size = 0;               // 0: 8
  bool chat = false;
  bool json = false;
  std::string output;                  // folder, absolute; empty: write nothing
  std::string weights = "stored";      // see generator.h
  std::vector<std::string> overrides;  // of the objective etc.
  std::vector<std::string> plugin_path;
};

// Runs the tasks, prints their numbers and returns the exit code.
absl::StatusOr<int> EvalTasks(const EvalTaskOptions& options);

// The answers of a dataset of conversations, for generation: of each of the
// first `count` samples, what comes before its last trained tokens as the
// prompt, and those as the reference. INVALID_ARGUMENT if the data has no
// untrained prompts, or packs several samples into one.
absl::StatusOr<std::vector<evaluate::Request>> AnswersOf(
    const DatasetReader& data, int64_t count);
// What is counted of them.
evaluate::Task AnswerTask(int64_t max_new_tokens);

// Writes samples into FOLDER/samples_NAME.jsonl.
absl::Status WriteSamples(const std::string& folder, const std::string& name,
                          const std::vector<std::string>& samples);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_EVAL_TASKS_H_
