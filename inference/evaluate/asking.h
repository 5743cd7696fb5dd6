// SPDX-License-Identifier: Apache-2.0
//
// Makes requests of tasks and of data, for a loaded model to answer.
#ifndef CAPSTAN_INFERENCE_EVALUATE_ASKING_H_
#define CAPSTAN_INFERENCE_EVALUATE_ASKING_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/evaluate/requests.h"
#include "inference/evaluate/task.h"
#include "inference/evaluate/task_group.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::evaluate {

// A task with what it asks.
struct Asked {
  Task task;
  std::vector<Request> requests;
  // CheckRequests; 0: not known.
  int64_t longest = 0;
};
// What is asked, what is right and how it is counted; for digests.
std::string TextOf(const Asked& asked);

// Reads a task's rows, at most `max_samples` (0: all). An error if it names no
// file of rows.
absl::StatusOr<Asked> Ask(const Task& task, int64_t max_samples);
// All that is asked, in groups.
struct Asking {
  TaskTree tree;  // whose tasks are those of `asked`
  std::vector<Asked> asked;
};

// Reads the tasks and groups of `files` (AddTasks), has `change` adapt each of
// `tasks`, and reads its rows.
absl::StatusOr<Asking> AskAll(
    const std::vector<std::string>& files, int64_t max_samples,
    const std::function<absl::Status(const TaskTree& tree, Task* task)>&
        change);

// Makes each context the user's turn, and what follows the assistant's, in the
// tokenizer's own template (FindChatTemplate). Errors are about `field`, which
// asks for it: "--chat".
absl::Status AsChats(const Tokenizer& tokenizer, const std::string& field,
                     Asking* asking);

// The answers of a dataset of conversations, for generation: of each of the
// first `count` samples, what comes before its last trained tokens as the
// prompt, and those as the reference. INVALID_ARGUMENT if the data has no
// untrained prompts, or packs several samples into one.
absl::StatusOr<std::vector<Request>> AnswersOf(const DatasetReader& data,
                                               int64_t count);
// What is counted of them.
Task AnswerTask(int64_t max_new_tokens);

// Writes samples into FOLDER/samples_NAME.jsonl.
absl::Status WriteSamples(const std::string& folder, const std::string& name,
                          const std::vector<std::string>& samples);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_ASKING_H_
