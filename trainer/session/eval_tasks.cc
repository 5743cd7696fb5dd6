// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/eval_tasks.h"

#include <dlfcn.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/own_library.h"
#include "base/status.h"
#include "trainer/metrics/reporter.h"

namespace capstan {
namespace {

absl::StatusOr<evaluate::MakeTaskSuite*> FindMaker() {
  // The desk has it, too.
  void* maker = dlsym(RTLD_DEFAULT, evaluate::kMakeTaskSuite);
  if (maker == nullptr) {
    CAPSTAN_ASSIGN_OR_RETURN(
        maker, OpenOwnLibrary(evaluate::kEvaluateLibrary, "inference/evaluate",
                              "the tasks of evaluations",
                              evaluate::kMakeTaskSuite, RTLD_NOW | RTLD_LOCAL));
  }
  return reinterpret_cast<evaluate::MakeTaskSuite*>(maker);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const evaluate::TaskSuite>> OpenEvalTasks(
    const EvalTasks& tasks, Model& model, const Tokenizer* tokenizer) {
  if (tasks.files().empty() ||
      std::find(tasks.files().begin(), tasks.files().end(), "") !=
          tasks.files().end()) {
    return FieldError("files", "names no task");
  }
  if (model.token_model() == nullptr || tokenizer == nullptr) {
    return absl::InvalidArgumentError("are for models of text: leave them out");
  }
  CAPSTAN_ASSIGN_OR_RETURN(evaluate::MakeTaskSuite* const make, FindMaker());
  evaluate::SuiteSettings settings;
  settings.files = {tasks.files().begin(), tasks.files().end()};
  settings.max_samples = tasks.max_samples();
  if (tasks.has_num_fewshot()) settings.num_fewshot = tasks.num_fewshot();
  settings.chat = tasks.chat();
  return make(settings, *model.token_model(), *tokenizer);
}

std::string TaskTag(const std::string& task, const std::string& metric) {
  std::string name = absl::StrCat(task, "_", metric);
  for (char& c : name) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c)) ||
        absl::string_view(",/\"\\").find(c) != absl::string_view::npos) {
      c = '_';
    }
  }
  return absl::StrCat("eval/", name);
}

std::vector<std::string> TaskMetricNames(const evaluate::TaskSuite& suite) {
  std::vector<std::string> names;
  const auto add = [&names](const auto& all) {
    for (const auto& one : all) {
      for (const std::string& number : one.numbers) {
        names.push_back(MetricName(TaskTag(one.name, number)));
      }
    }
  };
  add(suite.tasks());
  add(suite.groups());
  return names;
}

absl::optional<bool> HigherIsBetter(const std::string& metric,
                                    const evaluate::TaskSuite& suite) {
  for (const evaluate::SuiteTask& task : suite.tasks()) {
    for (const auto& [number, higher] : task.higher_is_better) {
      const std::string name = MetricName(TaskTag(task.name, number));
      if (metric == name || absl::StartsWith(metric, name + "_")) return higher;
    }
  }
  return absl::nullopt;
}

}  // namespace capstan
