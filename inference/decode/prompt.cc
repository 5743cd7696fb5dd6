// SPDX-License-Identifier: Apache-2.0
#include "inference/decode/prompt.h"

#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/json.h"
#include "base/json_parts.h"
#include "base/status.h"
#include "plugins/sdk/lib/chat_variables.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

bool IsRow(absl::string_view line) {
  if (!absl::StartsWith(line, "{")) return false;
  const Json row = ParseJson<Json>(line);
  return row.is_object() &&
         (row.contains("prompt") || row.contains("messages"));
}

absl::Status AddMessages(const Json& messages, absl::string_view json,
                         Prompt* prompt) {
  prompt->messages_json = std::string(json);
  for (const Json& message : messages) {
    const auto string_of = [&message](const char* key) {
      const auto found = message.find(key);
      return found != message.end() && found->is_string()
                 ? absl::make_optional(found->get<std::string>())
                 : absl::nullopt;
    };
    // One with calls, say, needs no content; the template's renderer looks.
    const bool more =
        message.size() > 2 || message.contains("tool_calls") ||
        (message.contains("content") && message["content"].is_array());
    if (!message.is_object() || !string_of("role") ||
        !(string_of("content") || more)) {
      return absl::InvalidArgumentError(
          "a message needs two strings, \"role\" and \"content\"");
    }
    prompt->messages.push_back(
        {*string_of("role"), string_of("content").value_or("")});
  }
  if (prompt->messages.empty()) {
    return absl::InvalidArgumentError("has no message");
  }
  if (prompt->messages.back().role == "assistant") {
    return absl::InvalidArgumentError(
        "the last message is the assistant's: there is nothing to answer");
  }
  return absl::OkStatus();
}

// Renders conversations with their template, and texts with the tokenizer's
// start tokens, as in training.
class TaskMaker {
 public:
  TaskMaker(const TaskSettings& settings, const Generator& generator)
      : settings_(settings), generator_(generator) {}

  absl::StatusOr<Task> Make(const Prompt& prompt) {
    const Tokenizer* const tokenizer = generator_.tokenizer.get();
    if (tokenizer == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("--model=", settings_.model, " has no tokenizer for ",
                       prompt.place, " (", generator_.tokenizer_error.message(),
                       "); use --prompt_ids=1,2,3"));
    }
    Task task = {&prompt, {}, {}};
    if (prompt.messages.empty()) {
      CAPSTAN_RETURN_IF_ERROR(CheckText(prompt.text, prompt));
      task.ids = tokenizer->Encode(prompt.text);
      if (task.ids.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(prompt.place, " is empty"));
      }
      tokenizer->AddEnds(&task.ids);
      const int64_t eos = tokenizer->special_ids().eos;
      if (eos >= 0) task.stops = {eos};
    } else {
      CAPSTAN_RETURN_IF_ERROR(FindTemplate());
      const absl::Status known =
          CheckChatVariables(prompt.variables, *template_);
      if (!known.ok()) {
        return FieldError("chat_template_kwargs",
                          absl::StrCat(prompt.place, ": ", known.message()));
      }
      ChatInput input;
      input.messages_json = prompt.messages_json;
      input.tools = prompt.tools;
      input.documents = prompt.documents;
      input.variables = settings_.chat_template_kwargs;
      input.own_variables = prompt.variables;
      input.generation_prompt = true;
      const absl::StatusOr<RenderedChat> text = template_->RenderInput(input);
      if (!text.ok()) return Annotate(text.status(), prompt.place);
      CAPSTAN_RETURN_IF_ERROR(CheckText(text->text, prompt));
      task.ids = tokenizer->Encode(text->text);
      task.stops = AnswerStops(*template_, *tokenizer);
    }
    return task;
  }

 private:
  absl::Status CheckText(const std::string& text, const Prompt& prompt) const {
    const absl::Status known = CheckKnown(*generator_.tokenizer, text);
    if (known.ok()) return known;
    return absl::InvalidArgumentError(
        absl::StrCat(prompt.place, " ", known.message()));
  }

  absl::Status FindTemplate() {
    if (template_ != nullptr) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(template_,
                             ChatTemplateOf(settings_, *generator_.tokenizer));
    return absl::OkStatus();
  }

  const TaskSettings& settings_;
  const Generator& generator_;
  std::unique_ptr<ChatTemplate> template_;
};

}  // namespace

void ReadContext(absl::string_view row, Prompt* prompt) {
  for (const auto& [key, text] :
       {std::pair("tools", &prompt->tools),
        std::pair("documents", &prompt->documents),
        std::pair("chat_template_kwargs", &prompt->variables)}) {
    const absl::string_view value = JsonMember(row, key);
    if (value.empty() || value == "null") continue;
    *text = value[0] == '"' ? ParseJson<Json>(value).get<std::string>()
                            : std::string(value);
  }
}

absl::Status ParsePrompt(absl::string_view line, Prompt* prompt) {
  const Json row = ParseJson<Json>(line);
  if (row.is_discarded()) return absl::InvalidArgumentError("isn't valid JSON");
  if (row.is_array()) return AddMessages(row, line, prompt);
  if (row.is_object()) {
    ReadContext(line, prompt);
    for (const char* const key : {"messages", "prompt"}) {
      if (!row.contains(key) || !row[key].is_array()) continue;
      return AddMessages(row[key], JsonMember(line, key), prompt);
    }
  }
  const Json what =
      row.is_object() && row.contains("prompt") ? row["prompt"] : row;
  if (!what.is_string()) {
    return absl::InvalidArgumentError(
        "must be {\"prompt\": TEXT}, {\"messages\": [..]} or a string");
  }
  if (!prompt->tools.empty() || !prompt->documents.empty() ||
      !prompt->variables.empty()) {
    return absl::InvalidArgumentError(
        "has tools, documents or chat_template_kwargs, which a text can't "
        "have: give messages");
  }
  prompt->text = what.get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path) {
  const bool standard_input = path == "-";
  const std::string name = standard_input ? "standard input" : path;
  std::string text;
  if (standard_input) {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(text, ReadWholeFile(path));
  }
  bool rows = absl::EndsWith(path, ".jsonl");
  std::vector<Prompt> prompts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::ConsumeSuffix(&line, "\r");
    if (prompts.empty() && IsRow(line)) rows = true;
    Prompt prompt;
    prompt.place = absl::StrCat(name, ":", number);
    if (rows) {
      CAPSTAN_RETURN_IF_ERROR(
          Annotate(ParsePrompt(line, &prompt), prompt.place));
    } else {
      prompt.text = std::string(line);
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no prompt in ", name));
  }
  return prompts;
}

absl::StatusOr<std::vector<Task>> MakeTasks(const std::vector<Prompt>& prompts,
                                            const TaskSettings& settings,
                                            const Generator& generator) {
  TaskMaker maker(settings, generator);
  const TokenModel* const model = generator.model->token_model();
  std::vector<Task> tasks;
  for (const Prompt& prompt : prompts) {
    CAPSTAN_ASSIGN_OR_RETURN(Task task, maker.Make(prompt));
    const int64_t length = static_cast<int64_t>(task.ids.size());
    // As CheckPrompt.
    if (model != nullptr &&
        length > model->max_positions() - (model->causal() ? 0 : 1)) {
      return absl::OutOfRangeError(absl::StrCat(
          prompt.place, " has ", length, " tokens, the model only ",
          model->max_positions(), " positions"));
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> FindChatTemplate(
    const std::string& name, const Tokenizer& tokenizer) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> found =
      ChatTemplate::Find(name, tokenizer);
  CAPSTAN_RETURN_IF_ERROR(found.status());
  CAPSTAN_RETURN_IF_ERROR((*found)->Check(tokenizer));
  return found;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplateOf(
    const TaskSettings& settings, const Tokenizer& tokenizer) {
  const std::string& name = settings.chat_template;
  if (name.empty() && tokenizer.chat_template().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model=", settings.model,
        ": the tokenizer has no chat template: name one by --template, ",
        absl::StrJoin(ChatTemplate::Names(), ", "), ", or a jinja file"));
  }
  absl::StatusOr<std::unique_ptr<ChatTemplate>> found =
      FindChatTemplate(name, tokenizer);
  if (!found.ok()) {
    return Annotate(found.status(),
                    name.empty() ? absl::StrCat("--model=", settings.model)
                                 : absl::StrCat("--template=", name));
  }
  const absl::Status known =
      CheckChatVariables(settings.chat_template_kwargs, **found);
  if (!known.ok()) return FieldError("--chat_template_kwargs", known.message());
  return found;
}

std::vector<int64_t> AnswerStops(const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer) {
  std::vector<int64_t> stops;
  for (const absl::optional<int64_t> id :
       {tokenizer.IdOf(chat_template.end_of_turn()),
        absl::optional<int64_t>(tokenizer.special_ids().eos)}) {
    if (id.has_value() && *id >= 0) stops.push_back(*id);
  }
  return stops;
}

}  // namespace capstan
