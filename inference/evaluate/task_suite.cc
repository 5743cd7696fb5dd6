// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/task_suite.h"

#include <memory>
#include <type_traits>
#include <utility>

#include "base/digest.h"
#include "base/status.h"
#include "inference/evaluate/asking.h"
#include "inference/evaluate/row_values.h"
#include "inference/evaluate/run_task.h"
#include "inference/evaluate/task_group.h"

namespace capstan::evaluate {
namespace {

std::vector<std::string> NamesOf(const std::vector<TaskNumber>& numbers) {
  std::vector<std::string> names;
  for (const TaskNumber& number : numbers) names.push_back(number.name);
  return names;
}

SuiteTask Describe(const Asked& asked) {
  SuiteTask task;
  task.name = asked.task.name;
  task.numbers = ValueNames(asked.task);
  for (const TaskMetric& metric : asked.task.metrics) {
    if (metric.higher_is_better.has_value()) {
      task.higher_is_better.emplace_back(metric.name, *metric.higher_is_better);
    }
  }
  task.requests = static_cast<int64_t>(asked.requests.size());
  task.longest = asked.longest;
  task.digest = DigestText(TextOf(asked));
  return task;
}

class AskedSuite : public TaskSuite {
 public:
  explicit AskedSuite(Asking asking) : asking_(std::move(asking)) {
    std::vector<TaskResult> named;  // a result without values
    for (const Asked& asked : asking_.asked) {
      tasks_.push_back(Describe(asked));
      named.emplace_back();
      for (const std::string& name : tasks_.back().numbers) {
        named.back().numbers.emplace_back();
        named.back().numbers.back().name = name;
      }
    }
    for (const TaskGroup& group : asking_.tree.groups) {
      groups_.push_back(
          {group.name, NamesOf(GroupNumbers(group, named)), group.tasks});
    }
  }

  const std::vector<SuiteTask>& tasks() const override { return tasks_; }
  const std::vector<SuiteGroup>& groups() const override { return groups_; }

  absl::StatusOr<std::vector<NamedNumbers>> Run(
      const Answerer& answerer) const override {
    std::vector<TaskResult> results;
    std::vector<NamedNumbers> all;
    for (const Asked& one : asking_.asked) {
      CAPSTAN_ASSIGN_OR_RETURN(TaskResult result,
                               RunTask(one.task, one.requests, answerer));
      all.push_back({one.task.name, result.numbers});
      results.push_back(std::move(result));
    }
    for (const TaskGroup& group : asking_.tree.groups) {
      all.push_back({group.name, GroupNumbers(group, results)});
    }
    return all;
  }

 private:
  const Asking asking_;
  std::vector<SuiteTask> tasks_;
  std::vector<SuiteGroup> groups_;
};

}  // namespace

extern "C" absl::StatusOr<std::shared_ptr<const TaskSuite>>
capstan_make_task_suite(const SuiteSettings& settings, TokenModel& model,
                        const Tokenizer& tokenizer) {
  CAPSTAN_ASSIGN_OR_RETURN(Asking asking,
                           AskAll(settings.files, settings.max_samples,
                                  [&settings](const TaskTree&, Task* task) {
                                    if (settings.num_fewshot.has_value()) {
                                      task->num_fewshot = *settings.num_fewshot;
                                    }
                                    return absl::OkStatus();
                                  }));
  if (settings.chat) {
    CAPSTAN_RETURN_IF_ERROR(AsChats(tokenizer, "chat", &asking));
  }
  for (Asked& asked : asking.asked) {
    CAPSTAN_ASSIGN_OR_RETURN(
        asked.longest,
        CheckRequests(asked.task, asked.requests, model, tokenizer));
  }
  return std::make_shared<const AskedSuite>(std::move(asking));
}
static_assert(std::is_same_v<decltype(capstan_make_task_suite), MakeTaskSuite>);

}  // namespace capstan::evaluate
