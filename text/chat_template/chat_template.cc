// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/chat_template.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "text/chat_template/conversation.h"
#include "text/chat_template/style.h"
#include "text/jinja/strings.h"

namespace capstan {
namespace {

// "system, user and assistant".
std::string List(const std::vector<std::string>& words) {
  const std::vector<std::string> most(words.begin(), words.end() - 1);
  return most.empty()
             ? words.back()
             : absl::StrCat(absl::StrJoin(most, ", "), " and ", words.back());
}

class StyledTemplate final : public ChatTemplate {
 public:
  explicit StyledTemplate(const ChatStyle& style) : style_(style) {}

  std::string name() const override { return style_.name; }
  std::string jinja() const override { return style_.jinja; }
  std::string end_of_turn() const override { return style_.turn_end; }
  absl::StatusOr<ChatText> Render(absl::Span<const ChatMessage> messages,
                                  bool generation_prompt) const override;
  absl::StatusOr<RenderedChat> RenderInput(
      const ChatInput& input) const override;
  absl::Status Check(const Tokenizer& tokenizer) const override {
    return CheckTokens(style_.special_tokens, style_.name, tokenizer);
  }

 private:
  void AppendHead(absl::string_view role, std::string* text) const {
    absl::StrAppend(text, style_.head_begin, role, style_.head_end);
  }
  void AppendTurn(const ChatMessage& message, absl::string_view prefix,
                  ChatText* out) const;

  const ChatStyle& style_;
};

void StyledTemplate::AppendTurn(const ChatMessage& message,
                                absl::string_view prefix, ChatText* out) const {
  std::string& text = out->text;
  const bool assistant = message.role == "assistant";
  AppendHead(assistant ? style_.assistant : message.role, &text);
  const int64_t begin = static_cast<int64_t>(text.size());
  absl::StrAppend(&text, prefix,
                  style_.trims ? jinja::Stripped(message.content)
                               : absl::string_view(message.content),
                  style_.turn_end);
  if (assistant) {
    out->assistant.emplace_back(begin, static_cast<int64_t>(text.size()));
  }
  text += style_.between_turns;
}

absl::StatusOr<ChatText> StyledTemplate::Render(
    absl::Span<const ChatMessage> messages, bool generation_prompt) const {
  const absl::Status roles = CheckRolesOf(style_, messages);
  if (!roles.ok()) return roles;
  ChatText out;
  size_t size = style_.bos.size() + style_.default_system.size() + 64;
  for (const ChatMessage& message : messages) {
    size += message.content.size() + message.role.size() + 64;
  }
  out.text.reserve(size);
  out.text = style_.bos;
  const bool system = messages[0].role == "system";
  if (!system && !style_.default_system.empty()) {
    AppendTurn({"system", style_.default_system}, "", &out);
  }
  std::string prefix;
  if (system && style_.alternates) {
    prefix = messages[0].content + "\n\n";
    messages.remove_prefix(1);
  }
  for (const ChatMessage& message : messages) {
    AppendTurn(message, prefix, &out);
    prefix.clear();
  }
  if (generation_prompt || style_.always_prompts) {
    AppendHead(style_.assistant, &out.text);
  }
  return out;
}

absl::StatusOr<RenderedChat> StyledTemplate::RenderInput(
    const ChatInput& input) const {
  RenderedChat out;
  std::vector<ChatMessage> written;
  absl::Span<const ChatMessage> messages = input.messages;
  size_t before = 0;  // messages that aren't the caller's
  if (!input.messages_json.empty() || !input.tools.empty()) {
    ChatInput seen = input;
    seen.documents = seen.variables = seen.own_variables = "";
    CAPSTAN_ASSIGN_OR_RETURN(Conversation all, ConversationOf(seen));
    const size_t given = all.messages.size();
    CAPSTAN_ASSIGN_OR_RETURN(const bool calls, WriteCallsAsText(&all));
    CAPSTAN_ASSIGN_OR_RETURN(const bool tools,
                             WriteToolsAsText(input.tools, &all));
    out.tools_as_text = calls || tools;
    before = all.messages.size() - given;
    for (const jinja::Value& message : all.messages) {
      written.push_back({RoleOf(message), TextOf(message, "content")});
    }
    messages = written;
  }
  CAPSTAN_ASSIGN_OR_RETURN(ChatText text,
                           Render(messages, input.generation_prompt));
  out.text = std::move(text.text);
  if (!input.find_turns) return out;
  size_t turn = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    const auto [begin, end] = text.assistant[turn++];
    out.turns.push_back({begin, end, static_cast<int64_t>(i - before)});
  }
  return out;
}

}  // namespace

absl::Status CheckRolesOf(const ChatStyle& style,
                          absl::Span<const ChatMessage> messages) {
  if (messages.empty()) {
    return absl::InvalidArgumentError("the conversation has no message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (std::find(style.roles.begin(), style.roles.end(), role) ==
        style.roles.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "message ", i + 1, " has the role \"", role, "\"; the template ",
          style.name, " knows ", List(style.roles)));
    }
  }
  if (!style.alternates) return absl::OkStatus();
  const size_t first = messages[0].role == "system" ? 1 : 0;
  if (first == messages.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the conversation has only a system message; the template ", style.name,
        " writes it into the first user turn"));
  }
  for (size_t i = first; i < messages.size(); ++i) {
    const char* const want = (i - first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role == want) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("message ", i + 1, " has the role \"", messages[i].role,
                     "\" where the template ", style.name, " wants \"", want,
                     "\": user and assistant take turns"));
  }
  return absl::OkStatus();
}

absl::Status CheckTokens(const std::vector<std::string>& tokens,
                         absl::string_view name, const Tokenizer& tokenizer) {
  std::vector<std::string> missing;
  for (const std::string& token : tokens) {
    const absl::optional<int64_t> id = tokenizer.IdOf(token);
    if (!id.has_value() || tokenizer.Encode(token) != std::vector{*id}) {
      missing.push_back(token);
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the tokenizer has no token ", List(missing), ", which the template ",
      name,
      " writes: choose a template that fits it, or add the tokens to its "
      "tokenizer.json"));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Named(
    absl::string_view name) {
  for (const ChatStyle& style : ChatStyles()) {
    if (style.name == name) return std::make_unique<StyledTemplate>(style);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no chat template \"", name, "\", only ", List(Names())));
}

std::vector<std::string> ChatTemplate::Names() {
  std::vector<std::string> names;
  for (const ChatStyle& style : ChatStyles()) names.push_back(style.name);
  return names;
}

}  // namespace capstan
