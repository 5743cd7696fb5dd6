// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_RUN_TASK_H_
#define CAPSTAN_INFERENCE_EVALUATE_RUN_TASK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "inference/evaluate/aggregate.h"
#include "inference/evaluate/requests.h"
#include "inference/evaluate/task.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::evaluate {

// Who answers.
struct Answerer {
  Model& model;  // a TokenModel
  Objective& objective;
  UnitRunner& runner;
  const Tokenizer& tokenizer;  // the model's own, or the data's
  ProcessGroup& group;
  uint64_t seed = 0;
  // Whether forwards are collective (Strategy::collective_forward): then each
  // rank answers all requests, in step with the others. Otherwise each has the
  // whole model, and answers a part of them.
  bool together = false;
  // Ends a forward (Strategy::FinishForward).
  std::function<void()> finish = [] {};
  int64_t batch_size = 1;  // requests at once
  // Of a model that isn't causal: BoundSettings::samples.
  int64_t bound_samples = 128;
  // Called with the completed fraction.
  std::function<void(double done)> progress = [](double) {};
};

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
