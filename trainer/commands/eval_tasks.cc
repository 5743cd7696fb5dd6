// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/eval_tasks.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/status.h"
#include "plugins/sdk/chat_template.h"
#include "trainer/commands/command.h"
#include "trainer/launcher/launcher.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/process_group/create.h"
#include "trainer/session/watch.h"
#include "trainer/watch/ledger.h"
#include "trainer/watch/watchdog.h"

namespace capstan {
namespace {

using evaluate::Document;
using evaluate::Request;
using evaluate::Task;
using evaluate::TaskNumber;
using evaluate::TaskResult;
using Json = nlohmann::ordered_json;

int64_t BatchSize(const EvalTaskOptions& options) {
  return options.batch_size > 0 ? options.batch_size : kDefaultEvalBatch;
}

// A task with what it asks.
struct Asked {
  Task task;
  std::vector<Request> requests;
};

absl::StatusOr<Asked> Prepare(const std::string& path,
                              const EvalTaskOptions& options) {
  Asked asked;
  CAPSTAN_ASSIGN_OR_RETURN(asked.task, evaluate::LoadTask(FromCaller(path)));
  Task& task = asked.task;
  if (options.num_fewshot.has_value()) {
    task.num_fewshot = *options.num_fewshot;
  }
  if (!options.data.empty()) task.docs_file = FromCaller(options.data);
  if (!options.fewshot_data.empty()) {
    task.fewshot_file = FromCaller(options.fewshot_data);
  }
  if (task.docs_file.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        " names no file of rows (dataset_kwargs.data_files): give one "
        "with --data=FILE"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<Document> documents,
                           evaluate::ReadDocuments(task.docs_file));
  std::vector<Document> examples;
  if (task.num_fewshot > 0) {
    if (task.fewshot_file.empty()) {
      examples = documents;
    } else {
      CAPSTAN_ASSIGN_OR_RETURN(examples,
                               evaluate::ReadDocuments(task.fewshot_file));
    }
  }
  if (options.max_samples > 0 &&
      options.max_samples < static_cast<int64_t>(documents.size())) {
    documents.resize(options.max_samples);
  }
  CAPSTAN_ASSIGN_OR_RETURN(asked.requests,
                           evaluate::MakeRequests(task, documents, examples));
  return asked;
}

// Makes each context the user's turn, and what follows the assistant's.
absl::Status AsChats(const ChatTemplate& chat, Asked* asked) {
  for (Request& request : asked->requests) {
    const std::vector<ChatMessage> messages = {{"user", request.context}};
    const absl::StatusOr<ChatText> text =
        chat.Render(messages, /*generation_prompt=*/true);
    if (!text.ok()) return Annotate(text.status(), request.place);
    request.context = text->text;
    // The head of the turn ends where the answer begins.
    for (std::string& continuation : request.continuations) {
      continuation =
          std::string(absl::StripLeadingAsciiWhitespace(continuation));
    }
  }
  return absl::OkStatus();
}

Json NumbersJson(const TaskResult& result) {
  Json json = {{"samples", result.requests}};
  for (const TaskNumber& number : result.numbers) {
    json[number.name] = number.value;
    if (number.standard_error.has_value()) {
      json[number.name + "_stderr"] = *number.standard_error;
    }
  }
  return json;
}

std::string Table(const EvalTaskOptions& options,
                  const std::vector<Asked>& asked,
                  const std::vector<TaskResult>& results, double seconds) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"model", options.model}};
  for (size_t i = 0; i < asked.size(); ++i) {
    const TaskResult& result = results[i];
    rows.emplace_back(asked[i].task.name,
                      absl::StrCat(WithCommas(result.requests), " samples, ",
                                   asked[i].task.num_fewshot, "-shot"));
    for (const TaskNumber& number : result.numbers) {
      rows.emplace_back(absl::StrCat("  ", number.name),
                        number.standard_error.has_value()
                            ? absl::StrFormat("%.4f +- %.4f", number.value,
                                              *number.standard_error)
                            : absl::StrFormat("%.6g", number.value));
    }
  }
  rows.emplace_back("took", ShortDuration(seconds));
  if (!options.output.empty()) rows.emplace_back("output", options.output);
  return TableText(rows);
}

absl::Status Report(const EvalTaskOptions& options,
                    const std::vector<Asked>& asked,
                    const std::vector<TaskResult>& results, double seconds) {
  Json json = {{"model", options.model}, {"seconds", seconds}};
  for (size_t i = 0; i < asked.size(); ++i) {
    Json task = {{"num_fewshot", asked[i].task.num_fewshot}};
    task.update(NumbersJson(results[i]));
    json["tasks"][asked[i].task.name] = std::move(task);
  }
  const std::string text = json.dump(2, ' ', /*ensure_ascii=*/false,
                                     Json::error_handler_t::replace) +
                           "\n";
  if (!options.output.empty()) {
    for (size_t i = 0; i < asked.size(); ++i) {
      CAPSTAN_RETURN_IF_ERROR(
          WriteSamples(options.output, asked[i].task.name, results[i].samples));
    }
    CAPSTAN_RETURN_IF_ERROR(ReplaceFile(options.output + "/eval.json", text));
  }
  std::cout << (options.json ? text : Table(options, asked, results, seconds))
            << std::flush;
  return absl::OkStatus();
}

absl::Status RunOnRank(const EvalTaskOptions& options,
                       const Generator& generator,
                       const std::vector<Asked>& asked, const RankInfo& rank) {
  at::set_num_threads(rank.threads);
  WantLedgers();
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                           CreateProcessGroup(rank, /*gpus=*/0));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Watchdog> watchdog,
                           Watch(generator.loaded.config.train(), *group));
  const Watchdog::Activity activity(watchdog.get(), "evaluation", /*step=*/0);
  PlainRunner runner;
  WorkBar bar("evaluating", options.json ? STDERR_FILENO : STDOUT_FILENO);
  evaluate::Answerer answerer =
      AnswererOf(generator, *generator.tokenizer, group.get(), &runner);
  answerer.batch_size = BatchSize(options);
  std::vector<TaskResult> results;
  for (const Asked& one : asked) {
    if (rank.rank == 0) {
      answerer.progress = [&](double done) { bar.Show(done, one.task.name); };
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        TaskResult result, evaluate::RunTask(one.task, one.requests, answerer));
    results.push_back(std::move(result));
  }
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  if (rank.rank != 0) return absl::OkStatus();
  return Report(options, asked, results, bar.Seconds());
}

int Ranks(const EvalTaskOptions& options, const std::vector<Asked>& asked) {
  size_t most = 1;
  for (const Asked& one : asked) most = std::max(most, one.requests.size());
  const int64_t batch = BatchSize(options);
  return RanksToEvaluate((static_cast<int64_t>(most) + batch - 1) / batch);
}

}  // namespace

int RanksToEvaluate(int64_t batches) {
  constexpr int kMostRanks = 8;
  const int64_t most = std::min(AvailableCores(), kMostRanks);
  return static_cast<int>(std::clamp<int64_t>(batches, 1, most));
}

evaluate::Answerer AnswererOf(const Generator& generator,
                              const Tokenizer& tokenizer, ProcessGroup* group,
                              UnitRunner* runner) {
  evaluate::Answerer answerer;
  answerer.model = generator.model.get();
  answerer.objective = generator.objective.get();
  answerer.tokenizer = &tokenizer;
  answerer.group = group;
  answerer.runner = runner;
  const int64_t eos = tokenizer.special_ids().eos;
  if (eos >= 0) answerer.stop_tokens = {eos};
  return answerer;
}

absl::StatusOr<int> EvalTasks(const EvalTaskOptions& options) {
  if (options.tasks.size() > 1 && !options.data.empty()) {
    return FieldError("--data", "is for one task; name the files in the tasks");
  }
  std::vector<Asked> asked;
  for (const std::string& path : options.tasks) {
    CAPSTAN_ASSIGN_OR_RETURN(Asked one, Prepare(path, options));
    asked.push_back(std::move(one));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const Generator generator,
      LoadGenerator(options.model, options.adapter, options.plugin_path,
                    options.overrides, WeightFormOf(options.weights)));
  if (!generator.model->token_model()->causal()) {
    return absl::UnimplementedError(absl::StrCat(
        "--task: ", options.model,
        " isn't causal: the likelihood of its answers is no product of those "
        "of their tokens"));
  }
  if (generator.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--model=", options.model, " has no tokenizer",
        generator.tokenizer_error.ok()
            ? ""
            : absl::StrCat(" (", generator.tokenizer_error.message(), ")")));
  }
  if (options.chat) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> chat,
                             FindChatTemplate("", *generator.tokenizer));
    for (Asked& one : asked) CAPSTAN_RETURN_IF_ERROR(AsChats(*chat, &one));
  }
  return LaunchRanks(Ranks(options, asked), [&](const RankInfo& rank) {
    return RunOnRank(options, generator, asked, rank);
  });
}

absl::StatusOr<std::vector<Request>> AnswersOf(const DatasetReader& data,
                                               int64_t count) {
  const Tokenizer* const tokenizer = data.tokenizer();
  if (tokenizer == nullptr) {
    return absl::InvalidArgumentError("--generate: the data isn't text");
  }
  const auto decode = [tokenizer](absl::Span<const int64_t> ids) {
    std::string text;
    for (const int64_t id : ids) evaluate::AppendText(*tokenizer, id, &text);
    return std::string(absl::StripAsciiWhitespace(text));
  };
  std::vector<Request> requests;
  for (int64_t i = 0; i < std::min(count, data.size()); ++i) {
    Batch batch;
    CAPSTAN_RETURN_IF_ERROR(data.Read({i}, &batch));
    if (batch.count(kPositions) != 0) {
      return absl::InvalidArgumentError(
          "--generate: the data packs several samples into a row; set "
          "eval_data.packing to none");
    }
    const auto labels = batch.find(kLabels);
    if (labels == batch.end()) {
      return absl::InvalidArgumentError(
          "--generate: all tokens of this data are trained, so there is no "
          "prompt to answer; it is for prompts and answers");
    }
    const at::Tensor ids = RequiredTensor(batch, kInputIds).contiguous();
    const at::Tensor label = labels->second.contiguous();
    const int64_t length = ids.size(1);
    const int64_t* const to = label.const_data_ptr<int64_t>();
    int64_t end = length;
    while (end > 0 && to[end - 1] < 0) --end;
    int64_t begin = end;
    while (begin > 0 && to[begin - 1] >= 0) --begin;
    if (begin == 0 || begin == end) continue;
    const int64_t* const all = ids.const_data_ptr<int64_t>();
    Request request;
    request.place = absl::StrCat("sample ", i);
    request.prompt.assign(all, all + begin);
    request.references = {
        decode({all + begin, static_cast<size_t>(end - begin)})};
    requests.push_back(std::move(request));
  }
  if (!requests.empty()) return requests;
  return absl::InvalidArgumentError(
      "--generate: no sample has both a prompt and an answer");
}

Task AnswerTask(int64_t max_new_tokens) {
  Task task;
  task.name = "answers";
  task.output = evaluate::TaskOutput::kGenerateUntil;
  task.max_tokens = max_new_tokens;
  task.metrics = {{"exact_match", {}}, {"rouge_l", {}}};
  evaluate::TaskFilter trimmed;
  trimmed.steps.push_back({});
  trimmed.steps.back().kind = evaluate::TaskFilter::Step::kRemoveWhitespace;
  task.filters.push_back(std::move(trimmed));
  return task;
}

absl::Status WriteSamples(const std::string& folder, const std::string& name,
                          const std::vector<std::string>& samples) {
  std::string file = name;
  for (char& c : file) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' &&
        c != '_') {
      c = '_';
    }
  }
  std::string text;
  for (const std::string& sample : samples)
    absl::StrAppend(&text, sample, "\n");
  return ReplaceFile(absl::StrCat(folder, "/samples_", file, ".jsonl"), text);
}

}  // namespace capstan
