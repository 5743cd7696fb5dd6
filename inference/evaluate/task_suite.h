// SPDX-License-Identifier: Apache-2.0
//
// The tasks of a run's evaluations as a trainer sees them. The rest of this
// folder is libcapstan_evaluate.so, which is opened when a run has tasks, or
// part of libcapstan_desk.so (`trainer eval`).
#ifndef CAPSTAN_INFERENCE_EVALUATE_TASK_SUITE_H_
#define CAPSTAN_INFERENCE_EVALUATE_TASK_SUITE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
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

struct TaskNumber {
  std::string name;  // "acc", "exact_match,strict-match"
  double value = 0.0;
  // Of a mean; unset otherwise.
  absl::optional<double> standard_error;
};

struct SuiteSettings {
  std::vector<std::string> files;  // AddTasks
  int64_t max_samples = 0;         // of each task; 0: all
  absl::optional<int64_t> num_fewshot;
  bool chat = false;  // AsChats
};

struct SuiteTask {
  std::string name;
  std::vector<std::string> numbers;  // their names; running it may give more
  // Of metrics, where the task says it.
  std::vector<std::pair<std::string, bool>> higher_is_better;
  int64_t requests = 0;
  int64_t longest = 0;  // tokens of a request, with what follows it
  // Of what is asked, what is right and how it is counted.
  std::string digest;
};

struct SuiteGroup {
  std::string name;
  std::vector<std::string> numbers;
  std::vector<size_t> tasks;  // all below it, of TaskSuite::tasks
};

// Of a task or a group.
struct NamedNumbers {
  std::string name;
  std::vector<TaskNumber> numbers;
};

// Thread-compatible.
class TaskSuite {
 public:
  virtual ~TaskSuite() = default;
  virtual const std::vector<SuiteTask>& tasks() const = 0;
  virtual const std::vector<SuiteGroup>& groups() const = 0;
  // The numbers of each task, and behind them those of each group. Collective,
  // with the errors of RunTask.
  virtual absl::StatusOr<std::vector<NamedNumbers>> Run(
      const Answerer& answerer) const = 0;
};

// What the library has, by the name kMakeTaskSuite: reads the tasks, and checks
// that the model has room for them. INVALID_ARGUMENT names the file of what is
// wrong.
using MakeTaskSuite = absl::StatusOr<std::shared_ptr<const TaskSuite>>(
    const SuiteSettings& settings, TokenModel& model,
    const Tokenizer& tokenizer);
inline constexpr char kMakeTaskSuite[] = "capstan_make_task_suite";
inline constexpr char kEvaluateLibrary[] = "libcapstan_evaluate.so";

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_TASK_SUITE_H_
