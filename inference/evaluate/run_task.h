// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_RUN_TASK_H_
#define CAPSTAN_INFERENCE_EVALUATE_RUN_TASK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/evaluate/aggregate.h"
#include "inference/evaluate/requests.h"
#include "inference/evaluate/task.h"
#include "inference/evaluate/task_suite.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::evaluate {

// Appends a token's text; markers have none.
void AppendText(const Tokenizer& tokenizer, int64_t id, std::string* text);

struct TaskResult {
  int64_t requests = 0;
  std::vector<TaskNumber> numbers;
  // One JSON object for each request, in order; on rank 0 only.
  std::vector<std::string> samples;
};

// Asks all requests, shared among the ranks. Collective, with the same numbers
// on all ranks; CANCELLED on all if any received a signal, INVALID_ARGUMENT for
// a model that doesn't write text (TokenModel::text_scores).
//
// Each batch has the same requests on any number of ranks.
absl::StatusOr<TaskResult> RunTask(const Task& task,
                                   const std::vector<Request>& requests,
                                   const Answerer& answerer);

// Checks that the model writes text, and that all requests can be encoded and
// have room in it. Returns the most tokens of one, with what follows it.
absl::StatusOr<int64_t> CheckRequests(const Task& task,
                                      const std::vector<Request>& requests,
                                      TokenModel& model,
                                      const Tokenizer& tokenizer);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_RUN_TASK_H_
