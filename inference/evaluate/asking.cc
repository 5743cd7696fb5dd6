// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/asking.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "inference/decode/prompt.h"
#include "inference/evaluate/documents.h"
#include "inference/evaluate/run_task.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::evaluate {

namespace {

absl::Status AsChat(const ChatTemplate& chat, const std::string& field,
                    Asked* asked) {
  if (!asked->task.format.prefix.empty() ||
      asked->task.output == TaskOutput::kRolling) {
    return FieldError(field,
                      absl::StrCat("isn't for the task ", asked->task.name,
                                   ", which begins the answer itself "
                                   "(gen_prefix) or has no question"));
  }
  for (Request& request : asked->requests) {
    for (Question& question : request.questions) {
      const std::vector<ChatMessage> messages = {{"user", question.context}};
      const absl::StatusOr<ChatText> text =
          chat.Render(messages, /*generation_prompt=*/true);
      if (!text.ok()) return Annotate(text.status(), request.place);
      question.context = text->text;
      // The head of the turn ends where the answer begins.
      for (std::string& continuation : question.continuations) {
        continuation =
            std::string(absl::StripLeadingAsciiWhitespace(continuation));
      }
    }
  }
  return absl::OkStatus();
}

// A file that can't be read is an error of the task that names it.
absl::StatusOr<std::vector<Document>> RowsOf(const Task& task,
                                             const std::string& file) {
  absl::StatusOr<std::vector<Document>> rows = ReadDocuments(file);
  if (ErrnoOf(rows.status()) == 0) return rows;
  return Annotate(rows.status(),
                  absl::StrCat(task.path, ": the rows of the task ", task.name,
                               " can't be read"));
}

}  // namespace

absl::StatusOr<Asked> Ask(const Task& task, int64_t max_samples) {
  if (task.docs_file.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        task.path,
        " names no file of rows: name it by dataset_kwargs.data_files, or tell "
        "`trainer eval` with --data=FILE, or --data=FOLDER with ",
        task.name, ".jsonl"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Document> documents,
                           RowsOf(task, task.docs_file));
  std::vector<Document> examples;
  if (task.num_fewshot > 0 && !task.fewshot_file.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(examples, RowsOf(task, task.fewshot_file));
  }
  Asked asked;
  asked.task = task;
  CAPSTAN_ASSIGN_OR_RETURN(
      asked.requests, MakeRequests(task, documents, examples, max_samples));
  return asked;
}

std::string TextOf(const Asked& asked) {
  Json all = Json::array();
  // Keys whose values name no place.
  for (const char* key : {"output_type", "metric_list", "filter_list",
                          "generation_kwargs", "repeats", "process_results"}) {
    const auto found = asked.task.keys.find(key);
    if (found != asked.task.keys.end()) all.push_back({key, found->second});
  }
  for (const Request& request : asked.requests) {
    for (const Question& question : request.questions) {
      all.push_back({question.context, question.continuations});
    }
    all.push_back({request.prompt, request.choices, request.gold,
                   request.references, request.asks_unconditional});
  }
  return JsonText(all);
}

absl::StatusOr<Asking> AskAll(
    const std::vector<std::string>& files, int64_t max_samples,
    const std::function<absl::Status(const TaskTree& tree, Task* task)>&
        change) {
  Asking asking;
  for (const std::string& path : files) {
    CAPSTAN_RETURN_IF_ERROR(AddTasks(path, &asking.tree));
  }
  for (Task task : asking.tree.tasks) {
    CAPSTAN_RETURN_IF_ERROR(change(asking.tree, &task));
    CAPSTAN_ASSIGN_OR_RETURN(Asked one, Ask(task, max_samples));
    asking.asked.push_back(std::move(one));
  }
  return asking;
}

absl::Status AsChats(const Tokenizer& tokenizer, const std::string& field,
                     Asking* asking) {
  if (tokenizer.chat_template().empty()) {
    return FieldError(field,
                      "the model's tokenizer has no chat template to ask in: "
                      "leave it out, or take a model whose tokenizer has one");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> chat,
                           FindChatTemplate("", tokenizer));
  for (Asked& asked : asking->asked) {
    CAPSTAN_RETURN_IF_ERROR(AsChat(*chat, field, &asked));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Request>> AnswersOf(const DatasetReader& data,
                                               int64_t count) {
  const Tokenizer* const tokenizer = data.tokenizer();
  if (tokenizer == nullptr) {
    return absl::InvalidArgumentError("--generate: the data isn't text");
  }
  const auto decode = [tokenizer](absl::Span<const int64_t> ids) {
    std::string text;
    for (const int64_t id : ids) AppendText(*tokenizer, id, &text);
    return std::string(absl::StripAsciiWhitespace(text));
  };
  std::vector<Request> requests;
  for (int64_t i = 0; i < std::min(count, data.size()); ++i) {
    Batch batch;
    CAPSTAN_RETURN_IF_ERROR(data.Read({i}, &batch));
    if (batch.count(kPositions) != 0) {
      return absl::InvalidArgumentError(
          "--generate: the data packs several samples into a row; set "
          "eval_data.packing to NONE");
    }
    const auto labels = batch.find(kLabels);
    if (batch.count(kRowText) != 0) {
      return absl::InvalidArgumentError(
          "--generate: the data has prompts alone (kind: PROMPT): it needs "
          "their answers, too, as another kind reads them");
    }
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
      "--generate: no sample has both a prompt that isn't trained and an "
      "answer that is: set eval_data.loss_on to ASSISTANT if all tokens are");
}

Task AnswerTask(int64_t max_new_tokens) {
  Task task;
  task.name = "answers";
  task.output = TaskOutput::kGenerateUntil;
  task.max_tokens = max_new_tokens;
  task.metrics = {{"exact_match", {}, "mean"}, {"rouge_l", {}, "mean"}};
  task.filters = {{"", {EachText([](const std::string& text) {
                     return std::string(absl::StripAsciiWhitespace(text));
                   })}}};
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

}  // namespace capstan::evaluate
