// SPDX-License-Identifier: Apache-2.0
#include "desk/score/scored_text.h"

#include <google/protobuf/message.h>

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
#include "host/config/load_config.h"
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

// What an answer of several turns adds to a prompt that is a text, as the model
// that gave it read it: only its own turns are ended.
std::string Continuation(const Json& messages, const std::string& end) {
  std::string text;
  for (const Json& message : messages) {
    if (!message.is_object()) continue;
    const Json content = message.value("content", Json());
    if (content.is_string()) text += content.get<std::string>();
    if (message.value("role", Json()) == "assistant") text += end;
  }
  return text;
}

absl::Status CheckCharacters(const Tokenizer& tokenizer,
                             const std::string& text) {
  const absl::Status known = CheckKnown(tokenizer, text);
  return known.ok() ? known : absl::OutOfRangeError(known.message());
}

// What readers of rows take without a max_length, unless the model has fewer
// positions.
constexpr int64_t kDefaultLength = 1024;

// Of an answer.
std::string EndOf(const Tokenizer& tokenizer) {
  const int64_t eos = tokenizer.special_ids().eos;
  return eos < 0 ? "" : tokenizer.Decode({eos});
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

Reading ReadingOf(const google::protobuf::Any& train_data) {
  using google::protobuf::FieldDescriptor;
  Reading reading;
  const auto config = Unpack(train_data);
  if (!config.ok()) return reading;
  const google::protobuf::Message& message = **config;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (const auto* const of =
          SingleField(message, "max_length", FieldDescriptor::TYPE_INT64)) {
    const int64_t most = reflection.GetInt64(message, of);
    reading.max_length = most > 0 ? most : kDefaultLength;
  }
  if (const auto* const of =
          SingleField(message, "truncation", FieldDescriptor::TYPE_ENUM)) {
    reading.keeps_end = reflection.GetEnum(message, of)->name() == "KEEP_END";
  }
  if (const auto* const of = SingleField(message, "chat_template_kwargs",
                                         FieldDescriptor::TYPE_STRING)) {
    reading.chat_template_kwargs = reflection.GetString(message, of);
  }
  return reading;
}

ScoredTexts::ScoredTexts(const TaskSettings& settings,
                         const Tokenizer& tokenizer, const Reading& reading)
    : reading_(reading), settings_(settings), tokenizer_(tokenizer) {
  if (settings_.chat_template_kwargs.empty()) {
    settings_.chat_template_kwargs = reading.chat_template_kwargs;
  }
}

absl::StatusOr<std::vector<int64_t>> ScoredTexts::TokensOf(
    absl::string_view line) {
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<int64_t> ids, UncutTokensOf(line));
  const int64_t more = static_cast<int64_t>(ids.size()) - reading_.max_length;
  if (reading_.max_length > 0 && more > 0) {
    const auto from =
        reading_.keeps_end ? ids.begin() : ids.begin() + reading_.max_length;
    ids.erase(from, from + more);
  }
  return ids;
}

absl::StatusOr<std::vector<int64_t>> ScoredTexts::UncutTokensOf(
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
    const auto turns = json.find("messages");
    const bool several = asked && turns != json.end() && turns->is_array();
    if (whole.text.has_value() && answer->is_string()) {
      return TokensOfText(*whole.text,
                          several ? Continuation(*turns, EndOf(tokenizer_))
                                  : answer->get<std::string>());
    }
    if (whole.text.has_value()) {
      whole.messages = {Message("user", *whole.text)};
    }
    if (several) {
      AddMessages(JsonMember(line, "messages"), &whole.messages);
    } else if (answer->is_string()) {
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
  const std::string end = EndOf(tokenizer_);
  if (!absl::EndsWith(completion, end)) text += end;
  CAPSTAN_RETURN_IF_ERROR(CheckCharacters(tokenizer_, text));
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
  CAPSTAN_RETURN_IF_ERROR(CheckCharacters(tokenizer_, rendered.text));
  std::vector<int64_t> ids = tokenizer_.Encode(rendered.text);
  if (ids.empty()) return absl::InvalidArgumentError("is empty");
  return ids;
}

}  // namespace capstan
