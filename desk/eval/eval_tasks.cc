// SPDX-License-Identifier: Apache-2.0
#include "desk/eval/eval_tasks.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/generate/model_flags.h"
#include "inference/evaluate/asking.h"
#include "inference/evaluate/run_task.h"
#include "inference/evaluate/task_group.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using evaluate::Asked;
using evaluate::Asking;
using evaluate::Task;
using evaluate::TaskGroup;
using evaluate::TaskNumber;
using evaluate::TaskResult;
using evaluate::TaskTree;
using Json = nlohmann::ordered_json;

int64_t BatchSize(const EvalOptions& options) {
  return options.batch_size > 0 ? options.batch_size : kDefaultEvalBatch;
}

// The rows' file that a flag names: the file itself, or the task's in a folder.
absl::StatusOr<std::string> FileOf(const char* flag, const std::string& given,
                                   const Task& task, bool only) {
  const std::string path = FromCaller(given);
  if (!IsFolder(path)) {
    if (only) return path;
    return FieldError(flag, absl::StrCat("is for one task: name a folder with "
                                         "a TASK.jsonl for each, as ",
                                         task.name, ".jsonl"));
  }
  for (const char* ending : {".jsonl", ".json"}) {
    const std::string file = absl::StrCat(path, "/", task.name, ending);
    if (PathExists(file)) return file;
  }
  return FieldError(flag,
                    absl::StrCat(given, " has no ", task.name,
                                 ".jsonl (or .json) with that task's rows"));
}

// What the flags change of a task.
absl::Status Adapt(const TaskTree& tree, const EvalOptions& options,
                   Task* task) {
  const bool only = tree.tasks.size() == 1;
  if (options.num_fewshot.has_value()) {
    task->num_fewshot = *options.num_fewshot;
  }
  if (!options.data.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(task->docs_file,
                             FileOf("--data", options.data, *task, only));
  }
  if (!options.fewshot_data.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        task->fewshot_file,
        FileOf("--fewshot_data", options.fewshot_data, *task, only));
  }
  return absl::OkStatus();
}

void AddNumbers(const std::vector<TaskNumber>& numbers, Json* json) {
  for (const TaskNumber& number : numbers) {
    (*json)[number.name] = number.value;
    if (number.standard_error.has_value()) {
      (*json)[number.name + "_stderr"] = *number.standard_error;
    }
  }
}

int64_t SamplesOf(const TaskGroup& group,
                  const std::vector<TaskResult>& results) {
  int64_t samples = 0;
  for (const size_t task : group.tasks) samples += results[task].requests;
  return samples;
}

std::string Table(const EvalOptions& options, const Generator& generator,
                  const Asking& asking, const std::vector<TaskResult>& results,
                  double seconds) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"model", options.model}, {"computed in", generator.arithmetic}};
  const auto add = [&](const TaskTree::Row& row, const std::string& name,
                       const std::string& about,
                       const std::vector<TaskNumber>& numbers) {
    const std::string indent(2 * row.depth, ' ');
    rows.emplace_back(absl::StrCat(indent, row.depth > 0 ? "- " : "", name),
                      about);
    for (const TaskNumber& number : numbers) {
      rows.emplace_back(absl::StrCat(indent, "  ", number.name),
                        number.standard_error.has_value()
                            ? absl::StrFormat("%.4f +- %.4f", number.value,
                                              *number.standard_error)
                            : absl::StrFormat("%.6g", number.value));
    }
  };
  for (const TaskTree::Row& row : asking.tree.rows) {
    if (row.is_group) {
      const TaskGroup& group = asking.tree.groups[row.index];
      add(row, group.alias.empty() ? group.name : group.alias,
          absl::StrCat(group.tasks.size(), " tasks, ",
                       WithCommas(SamplesOf(group, results)), " samples"),
          evaluate::GroupNumbers(group, results));
    } else {
      const Task& task = asking.asked[row.index].task;
      const TaskResult& result = results[row.index];
      add(row, row.depth == 0 || task.alias.empty() ? task.name : task.alias,
          absl::StrCat(WithCommas(result.requests), " samples, ",
                       task.num_fewshot, "-shot"),
          result.numbers);
    }
  }
  rows.emplace_back("took", ShortDuration(seconds));
  if (!options.output.empty()) rows.emplace_back("output", options.output);
  return PrintableText(TableText(rows));
}

absl::Status Report(const EvalOptions& options, const Generator& generator,
                    const Asking& asking,
                    const std::vector<TaskResult>& results, double seconds) {
  Json json = {{"model", options.model},
               {"arithmetic", generator.arithmetic},
               {"seconds", seconds}};
  for (const TaskGroup& group : asking.tree.groups) {
    Json one = {{"samples", SamplesOf(group, results)}};
    AddNumbers(evaluate::GroupNumbers(group, results), &one);
    json["groups"][group.name] = std::move(one);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const Task& task = asking.asked[i].task;
    Json one = {{"num_fewshot", task.num_fewshot},
                {"samples", results[i].requests}};
    AddNumbers(results[i].numbers, &one);
    json["tasks"][task.name] = std::move(one);
  }
  const std::string text = JsonText(json, 2) + "\n";
  if (!options.output.empty()) {
    const std::string folder = FromCaller(options.output);
    for (size_t i = 0; i < results.size(); ++i) {
      CAPSTAN_RETURN_IF_ERROR(evaluate::WriteSamples(
          folder, asking.asked[i].task.name, results[i].samples));
    }
    CAPSTAN_RETURN_IF_ERROR(ReplaceFile(folder + "/eval.json", text));
  }
  std::cout << (options.json
                    ? text
                    : Table(options, generator, asking, results, seconds))
            << std::flush;
  return absl::OkStatus();
}

// How many batches the task with most requests has.
int64_t MostBatches(const EvalOptions& options,
                    const std::vector<Asked>& asked) {
  size_t most = 1;
  for (const Asked& one : asked) most = std::max(most, one.requests.size());
  const int64_t batch = BatchSize(options);
  return (static_cast<int64_t>(most) + batch - 1) / batch;
}

}  // namespace

absl::StatusOr<int> EvalTasks(const EvalOptions& options) {
  std::vector<std::string> files;
  for (const std::string& path : options.tasks) {
    files.push_back(FromCaller(path));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      Asking asking,
      evaluate::AskAll(files, options.max_samples,
                       [&](const TaskTree& tree, evaluate::Task* task) {
                         return Adapt(tree, options, task);
                       }));
  CAPSTAN_ASSIGN_OR_RETURN(const WeightPlace place, PlaceHere(options.weights));
  CAPSTAN_ASSIGN_OR_RETURN(
      Generator generator,
      LoadWithPlugins(options.model, options.adapter, options.plugin_path,
                      options.overrides, place));
  if (generator.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--model=", options.model, " has no tokenizer",
        generator.tokenizer_error.ok()
            ? ""
            : absl::StrCat(" (", generator.tokenizer_error.message(), ")")));
  }
  if (options.chat) {
    CAPSTAN_RETURN_IF_ERROR(
        evaluate::AsChats(*generator.tokenizer, "--chat", &asking));
  }
  std::vector<TaskResult> results;
  const auto on_rank = [&](ProcessGroup& group, WorkBar& bar) -> absl::Status {
    PlainRunner runner;
    evaluate::Answerer answerer{*generator.model, *generator.objective, runner,
                                *generator.tokenizer, group};
    answerer.seed = generator.loaded.config.train().seed();
    answerer.batch_size = BatchSize(options);
    answerer.bound_samples = options.bound_samples;
    for (const Asked& one : asking.asked) {
      if (group.rank() == 0) {
        answerer.progress = [&](double done) { bar.Show(done, one.task.name); };
      }
      CAPSTAN_ASSIGN_OR_RETURN(
          TaskResult result,
          evaluate::RunTask(one.task, one.requests, answerer));
      results.push_back(std::move(result));
    }
    return absl::OkStatus();
  };
  return LaunchEvaluation(
      options, &generator, MostBatches(options, asking.asked), on_rank,
      [&](double seconds) {
        return Report(options, generator, asking, results, seconds);
      });
}

}  // namespace capstan
