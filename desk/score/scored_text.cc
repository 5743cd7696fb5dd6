// SPDX-License-Identifier: Apache-2.0
#include "desk/score/scored_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/json.h"
#include "base/json_parts.h"
#include "base/status.h"
#include "plugins/sdk/lib/chat_variables.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

std::string Message(const char* role, const std::string& content) {
  return JsonText(Json{{"role", role}, {"content", content}});
}

// Messages are kept as they are written, since parsers round large integers.
void AddMessages(absl::string_view list, std::vector<std::string>* messages) {
  for (const absl::string_view item : JsonItems(list)) {
    messages->emplace_back(item);
  }
}

bool IsAnswer(absl::string_view message) {
  const Json json = ParseJson<Json>(message);
  return json.is_object() && json.value("role", Json()) == "assistant";
}

// A line's prompt and answer, as texts or as messages.
struct Conversation {
  absl::optional<std::string> text;   // the prompt, if it is one
  std::vector<std::string> messages;  // else, as JSON
};

absl::StatusOr<Conversation> PromptOf(const Json& row, absl::string_view json) {
  Conversation prompt;
  const auto of = row.find("prompt");
  if (of != row.end() && of->is_string()) {
    prompt.text = of->get<std::string>();
    return prompt;
  }
  for (const char* const key : {"prompt", "messages"}) {
    const auto list = row.find(key);
    if (list == row.end() || !list->is_array()) continue;
    AddMessages(JsonMember(json, key), &prompt.messages);
    return prompt;
  }
  return absl::InvalidArgumentError(
      "has neither a \"prompt\", a text or a list of messages, nor "
      "\"messages\", by which a reward model is asked");
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> ScoredTexts::TokensOf(
    absl::string_view line) {
  const Json json = ParseJson<Json>(line);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("isn't a JSON object");
  }
  const auto row = json.find("row");
  const bool asked = row != json.end() && row->is_object();
  const absl::string_view from = asked ? JsonMember(line, "row") : line;
  const char* const key = asked ? "text" : "completion";
  const auto answer = json.find(key);
  const bool answered =
      answer != json.end() && (answer->is_string() || answer->is_array());
  Conversation whole;
  if (!answered) {
    const auto text = json.find("text");
    if (!asked && text != json.end() && text->is_string()) {
      return TokensOfText("", text->get<std::string>());
    }
    const auto messages = json.find("messages");
    if (asked || messages == json.end() || !messages->is_array()) {
      return absl::InvalidArgumentError(
          "has nothing to score: write {\"prompt\": .., \"completion\": ..}, "
          "{\"messages\": [..]} or {\"text\": ..}");
    }
    AddMessages(JsonMember(line, "messages"), &whole.messages);
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(whole, PromptOf(asked ? *row : json, from));
    // As capstan.chat's kind: PROMPT leaves out the row's own answer.
    if (asked && !whole.messages.empty() && IsAnswer(whole.messages.back())) {
      whole.messages.pop_back();
    }
    if (whole.text.has_value() && answer->is_string()) {
      return TokensOfText(*whole.text, answer->get<std::string>());
    }
    if (whole.text.has_value()) {
      whole.messages = {Message("user", *whole.text)};
    }
    if (answer->is_string()) {
      whole.messages.push_back(
          Message("assistant", answer->get<std::string>()));
    } else {
      AddMessages(JsonMember(line, key), &whole.messages);
    }
  }
  Prompt chat;
  chat.messages_json =
      absl::StrCat("[", absl::StrJoin(whole.messages, ","), "]");
  ReadContext(from, &chat);
  return TokensOfChat(chat);
}

// As datasets/chat's RowEncoder::PairIds.
absl::StatusOr<std::vector<int64_t>> ScoredTexts::TokensOfText(
    const std::string& prompt, const std::string& completion) const {
  std::string text = prompt + completion;
  const int64_t eos = tokenizer_.special_ids().eos;
  const std::string end = eos < 0 ? "" : tokenizer_.Decode({eos});
  if (!absl::EndsWith(completion, end)) text += end;
  CAPSTAN_RETURN_IF_ERROR(CheckKnown(tokenizer_, text));
  const std::vector<int64_t> ids = tokenizer_.Encode(text);
  // What the tokenizer adds in front, unless the text spells it.
  constexpr int64_t kText = -1;  // no id
  std::vector<int64_t> all = {kText};
  tokenizer_.AddEnds(&all);
  all.erase(std::find(all.begin(), all.end(), kText), all.end());
  if (!all.empty() && !ids.empty() && ids[0] == all[0]) all.clear();
  all.insert(all.end(), ids.begin(), ids.end());
  if (all.empty()) return absl::InvalidArgumentError("is empty");
  return all;
}

absl::StatusOr<std::vector<int64_t>> ScoredTexts::TokensOfChat(
    const Prompt& chat) {
  if (template_ == nullptr) {
    CAPSTAN_ASSIGN_OR_RETURN(template_, ChatTemplateOf(settings_, tokenizer_));
  }
  CAPSTAN_RETURN_IF_ERROR(Annotate(
      CheckChatVariables(chat.variables, *template_), "chat_template_kwargs"));
  ChatInput input;
  input.messages_json = chat.messages_json;
  input.tools = chat.tools;
  input.documents = chat.documents;
  input.variables = settings_.chat_template_kwargs;
  input.own_variables = chat.variables;
  CAPSTAN_ASSIGN_OR_RETURN(const RenderedChat rendered,
                           template_->RenderInput(input));
  CAPSTAN_RETURN_IF_ERROR(CheckKnown(tokenizer_, rendered.text));
  std::vector<int64_t> ids = tokenizer_.Encode(rendered.text);
  if (ids.empty()) return absl::InvalidArgumentError("is empty");
  return ids;
}

}  // namespace capstan
