// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/reply_writer.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/grpo/rewards/row_field.h"

namespace capstan::grpo {
namespace {

using Json = ReplyWriter::Json;

// A text that templates copy as it is, and nobody else says.
constexpr char kMark[] = "ThisTurnIsCapstansMark";

Json Message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// What follows the mark in a text; "" if it isn't there.
std::string AfterMark(absl::string_view text) {
  const size_t at = text.find(kMark);
  return at == absl::string_view::npos
             ? ""
             : std::string(text.substr(at + sizeof(kMark) - 1));
}

// Of a message's key; `otherwise` if it isn't a text.
std::string TextIn(const Json& message, const char* key,
                   const char* otherwise) {
  const auto found = message.find(key);
  return found != message.end() && found->is_string()
             ? found->get<std::string>()
             : otherwise;
}

// An assistant's turn that `messages` may follow, with the mark in it: as some
// templates refuse a tool's turn after one without calls, with a call of the
// first message's tool.
Json MarkedTurn(const Json& messages, bool calls) {
  if (!calls) return Message("assistant", kMark);
  Json turn = Message("assistant", "");
  turn["tool_calls"] =
      Json::array({{{"id", TextIn(messages[0], "tool_call_id", "capstan01")},
                    {"type", "function"},
                    {"function",
                     {{"name", TextIn(messages[0], "name", "tool")},
                      {"arguments", {{"mark", kMark}}}}}}});
  return turn;
}

}  // namespace

ReplyWriter::ReplyWriter(const DatasetReader& data)
    : tokenizer_(*data.tokenizer()) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> found =
      ChatTemplate::Find("", tokenizer_);
  if (!found.ok()) {
    no_template_ = found.status();
    return;
  }
  template_ = *std::move(found);
  const auto user = Render(Json::array({Message("user", kMark)}), "", false);
  if (user.ok()) user_end_ = AfterMark(*user);
  try {
    // The reader knows its own chat_template_kwargs.
    std::string asked = tokenizer_.Decode(data.PromptIds(kMark));
    const std::string end = AfterMark(asked);
    absl::string_view head = end;
    if (absl::ConsumePrefix(&head, user_end_)) head_ = std::string(head);
  } catch (const std::invalid_argument&) {
    // A template that refuses a user's turn: the default it is.
  }
  if (head_.empty()) head_ = HeadBy("");
}

absl::StatusOr<std::string> ReplyWriter::Render(const Json& messages,
                                                const std::string& variables,
                                                bool generation_prompt) const {
  const std::string json = JsonText(messages);
  ChatInput input;
  input.messages_json = json;
  input.own_variables = variables;
  input.generation_prompt = generation_prompt;
  CAPSTAN_ASSIGN_OR_RETURN(RenderedChat rendered,
                           template_->RenderInput(input));
  return std::move(rendered.text);
}

std::string ReplyWriter::HeadBy(const std::string& variables) const {
  const auto asked =
      Render(Json::array({Message("user", kMark)}), variables, true);
  if (!asked.ok()) return "";
  const std::string end = AfterMark(*asked);
  absl::string_view head = end;
  return absl::ConsumePrefix(&head, user_end_) ? std::string(head) : "";
}

absl::StatusOr<ReplyWriter::Ending> ReplyWriter::EndingOf(
    absl::string_view prompt, absl::string_view row) const {
  const Json json = ParseJson<Json>(row);
  const auto has = [&json](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return json.is_object() && found != json.end() && !found->is_null();
  };
  Ending ending;
  // As capstan.chat has it: any other row is a conversation.
  ending.is_text = has("prompt") && json["prompt"].is_string();
  if (has("chat_template_kwargs")) {
    ending.variables = TextOf(json["chat_template_kwargs"]);
  }
  if (template_ == nullptr) {
    if (ending.is_text) return ending;
    return Annotate(no_template_, "a prompt is a conversation");
  }
  ending.head = head_;
  if (!ending.variables.empty()) {
    std::string own = HeadBy(ending.variables);
    if (absl::EndsWith(prompt, own)) ending.head = std::move(own);
  }
  const bool ends = absl::EndsWith(prompt, ending.head);
  if (ending.is_text) {
    // It may be what a template has written.
    ending.is_text = ending.head.empty() || !ends;
    return ending;
  }
  if (ends) return ending;
  return absl::InvalidArgumentError(
      absl::StrCat("the prompt doesn't end with the head of the assistant's "
                   "turn, which the chat template writes as ",
                   Quoted(ending.head),
                   ", so that nothing can be said after the model's turn"));
}

absl::Status ReplyWriter::Check(absl::string_view prompt,
                                absl::string_view row) const {
  return EndingOf(prompt, row).status();
}

absl::StatusOr<std::string> ReplyWriter::Between(const Json& messages,
                                                 const std::string& variables,
                                                 absl::string_view end) const {
  const std::string own_end = template_->end_of_turn();
  absl::Status status;
  for (const bool calls : {false, true}) {
    Json all = Json::array({Message("user", "?"), MarkedTurn(messages, calls)});
    for (const Json& message : messages) all.push_back(message);
    const absl::StatusOr<std::string> text = Render(all, variables, false);
    if (!text.ok()) {
      status.Update(text.status());
      continue;
    }
    const std::string after = AfterMark(*text);
    // The model may end its turn by another token than the template's.
    for (const absl::string_view known : {end, absl::string_view(own_end)}) {
      const size_t at =
          known.empty() ? std::string::npos : after.find(std::string(known));
      if (at != std::string::npos) return after.substr(at + known.size());
    }
    status.Update(absl::InvalidArgumentError(absl::StrCat(
        "it ends an assistant's turn neither with ", Quoted(end), " nor with ",
        Quoted(own_end), ", but writes ", Quoted(after), " after it")));
  }
  return status;
}

absl::Status ReplyWriter::CheckRole(const Json& message,
                                    const std::string& variables,
                                    absl::string_view end) {
  const std::string role = TextIn(message, "role", "");
  if (known_roles_.count(role) > 0) return absl::OkStatus();
  Json marked = message;
  marked["content"] = kMark;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string text,
      Between(Json::array({std::move(marked)}), variables, end));
  if (!absl::StrContains(text, kMark)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it doesn't write what somebody of the role ", Quoted(role), " says"));
  }
  known_roles_.insert(role);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> ReplyWriter::Write(
    absl::string_view prompt, absl::string_view row, int64_t last,
    const Json& messages) {
  CAPSTAN_ASSIGN_OR_RETURN(const Ending ending, EndingOf(prompt, row));
  const std::string end = tokenizer_.Decode({last});
  std::string text;
  if (ending.is_text) {
    for (const Json& message : messages) text += TextIn(message, "content", "");
  } else {
    const std::string name =
        absl::StrCat("the chat template ", template_->name());
    for (const Json& message : messages) {
      CAPSTAN_RETURN_IF_ERROR(
          Annotate(CheckRole(message, ending.variables, end), name));
    }
    absl::StatusOr<std::string> between =
        Between(messages, ending.variables, end);
    if (!between.ok()) return Annotate(between.status(), name);
    text = *between + ending.head;
  }
  // Behind the token that it follows, as a begin isn't written in its midst.
  std::vector<int64_t> ids = tokenizer_.Encode(end + text);
  if (!ids.empty() && ids[0] == last) {
    ids.erase(ids.begin());
  } else {
    ids = tokenizer_.Encode(text);
  }
  return ids;
}

}  // namespace capstan::grpo
