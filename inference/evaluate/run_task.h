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
#include "inference/load/generator.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::evaluate {

// Who answers; each rank has the whole model.
struct Answerer {
  const Generator& generator;  // of a TokenModel
  const Tokenizer& tokenizer;  // its own, or the data's
  ProcessGroup& group;
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
// on all ranks; CANCELLED on all if any received a signal.
absl::StatusOr<TaskResult> RunTask(const Task& task,
                                   const std::vector<Request>& requests,
                                   const Answerer& answerer);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_RUN_TASK_H_
