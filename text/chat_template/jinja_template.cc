// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/jinja_template.h"

#include <algorithm>
#include <string>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status.h"
#include "text/chat_template/conversation.h"

namespace capstan {
namespace {

using jinja::Dict;
using jinja::Value;
using Messages = absl::Span<const ChatMessage>;

constexpr char kOwn[] = "the tokenizer's own";
constexpr char kWhere[] =
    "the tokenizer's chat template (chat_template.jinja or "
    "tokenizer_config.json)";
// Contents of a trial that no template spells.
constexpr char kQuestion[] = "Qzxq";
constexpr char kAnswer[] = "Azxq";
constexpr char kFunction[] = "Fzxq";

std::string TextOf(const Tokenizer& tokenizer, int64_t id) {
  return id < 0 ? "" : tokenizer.Decode({id});
}

// The first, or last, special token of the text; "" if there is none.
std::string SpecialIn(const Tokenizer& tokenizer, const std::string& text,
                      bool last) {
  const Encoding tokens = tokenizer.EncodeWithPlaces(text);
  std::string found;
  for (size_t t = 0; t < tokens.ids.size() && (last || found.empty()); ++t) {
    if (!tokenizer.IsSpecial(tokens.ids[t])) continue;
    found = text.substr(tokens.begins[t], tokens.ends[t] - tokens.begins[t]);
  }
  return found;
}

// transformers passes those that are set.
std::vector<std::pair<std::string, std::string>> SpecialTokens(
    const Tokenizer& tokenizer) {
  const Tokenizer::SpecialIds ids = tokenizer.special_ids();
  std::vector<std::pair<std::string, std::string>> tokens;
  for (const auto& [name, id] :
       {std::pair("bos_token", ids.bos), std::pair("eos_token", ids.eos),
        std::pair("pad_token", ids.pad)}) {
    if (id >= 0) tokens.emplace_back(name, TextOf(tokenizer, id));
  }
  return tokens;
}

// The jinja source in quotes: the template looks at this role.
bool Mentions(const std::string& jinja, const std::string& role) {
  return absl::StrContains(jinja, absl::StrCat("'", role, "'")) ||
         absl::StrContains(jinja, absl::StrCat("\"", role, "\""));
}

// "<|name|>"s in `text`, each once: text that is to be one token.
std::vector<std::string> Markers(absl::string_view text) {
  std::vector<std::string> found;
  for (size_t at = 0; (at = text.find("<|", at)) != absl::string_view::npos;) {
    const size_t end = text.find("|>", at + 2);
    if (end == absl::string_view::npos) break;
    const absl::string_view inner = text.substr(at + 2, end - at - 2);
    if (inner.empty() || inner.find_first_of("<> \n|") != inner.npos) {
      at += 2;
      continue;
    }
    std::string marker(text.substr(at, end + 2 - at));
    if (std::find(found.begin(), found.end(), marker) == found.end()) {
      found.push_back(std::move(marker));
    }
    at = end + 2;
  }
  return found;
}

// Conversations by which templates are told apart: each is rendered with and
// without a generation prompt.
const std::vector<std::vector<ChatMessage>>& Trials() {
  static const auto* const trials = new std::vector<std::vector<ChatMessage>>{
      {{"user", "a"}},
      {{"system", " b "}, {"user", "\u00a0c\n"}, {"assistant", " d\u3000"}},
      {{"user", "a"},
       {"assistant", "<think>\ne\n</think>\n\nf"},
       {"user", "g"},
       {"assistant", "h"}},
      {{"user", "a"},
       {"assistant", "i"},
       {"user", ""},
       {"assistant", "j"},
       {"user", "k"},
       {"assistant", ""}},
  };
  return *trials;
}

// A question and its answer, so many times.
std::vector<ChatMessage> Talk(int times) {
  std::vector<ChatMessage> talk;
  for (int i = 0; i < times; ++i) {
    talk.push_back({"user", kQuestion});
    talk.push_back({"assistant", kAnswer});
  }
  return talk;
}

}  // namespace

JinjaTemplate::JinjaTemplate(std::string jinja, std::string where,
                             std::unique_ptr<jinja::Template> parsed,
                             const Tokenizer& tokenizer, std::time_t now)
    : jinja_(std::move(jinja)),
      where_(std::move(where)),
      template_(std::move(parsed)),
      now_(now),
      special_tokens_(SpecialTokens(tokenizer)) {}

absl::StatusOr<std::unique_ptr<JinjaTemplate>> JinjaTemplate::Create(
    const Tokenizer& tokenizer, std::time_t now) {
  return Create(tokenizer.chat_template(), kOwn, kWhere, tokenizer, now);
}

absl::StatusOr<std::unique_ptr<JinjaTemplate>> JinjaTemplate::Create(
    std::string source, const std::string& name, const std::string& where,
    const Tokenizer& tokenizer, std::time_t now) {
  jinja::Limits limits;
  limits.steps = 4'000'000;
  absl::StatusOr<std::unique_ptr<jinja::Template>> parsed =
      jinja::Template::Parse(source, limits);
  CAPSTAN_RETURN_IF_ERROR(OfTemplate(where, parsed.status()));
  auto made = absl::WrapUnique(new JinjaTemplate(
      std::move(source), where, *std::move(parsed), tokenizer, now));
  made->name_ = name;
  CAPSTAN_RETURN_IF_ERROR(made->Try(tokenizer));
  return made;
}

absl::Status JinjaTemplate::OfTemplate(const std::string& where,
                                       const absl::Status& status) {
  if (status.ok()) return status;
  return WithMessage(
      status,
      absl::StrCat(where,
                   absl::StartsWith(status.message(), "line ") ? ", " : ": ",
                   status.message()));
}

absl::StatusOr<jinja::Rendered> JinjaTemplate::Text(
    absl::Span<const Value> messages, const Conversation& other,
    bool generation_prompt) const {
  Dict variables;
  for (const auto& [name, text] : special_tokens_) variables.Set(name, text);
  variables.Set("messages", Value::List(std::vector<Value>(messages.begin(),
                                                           messages.end())));
  variables.Set("tools", other.tools);
  variables.Set("documents", other.documents);
  variables.Set("add_generation_prompt", generation_prompt);
  // They may also be another bos_token, or tools, as transformers' may.
  for (const auto& [name, value] : other.variables.items) {
    variables.Set(name, value);
  }
  absl::StatusOr<jinja::Rendered> text =
      template_->Render(Value::Of(std::move(variables)), now_);
  if (!text.ok()) return OfTemplate(where_, text.status());
  return text;
}

absl::StatusOr<jinja::Rendered> JinjaTemplate::Text(
    Messages messages, bool generation_prompt) const {
  ChatInput input;
  input.messages = messages;
  CAPSTAN_ASSIGN_OR_RETURN(const Conversation conversation,
                           ConversationOf(input));
  return Text(conversation.messages, conversation, generation_prompt);
}

bool JinjaTemplate::WritesAs(const ChatStyle& style) const {
  const auto named = ChatTemplate::Named(style.name);
  if (!named.ok()) return false;
  for (const std::vector<ChatMessage>& trial : Trials()) {
    for (const bool prompt : {false, true}) {
      const auto own = Text(trial, prompt);
      // Gemma 2's refuses system turns.
      if (!own.ok() && trial[0].role == "system" && style.alternates) continue;
      const auto want = (*named)->Render(trial, prompt);
      if (!own.ok() || !want.ok() || own->text != want->text) return false;
    }
  }
  return true;
}

absl::Status JinjaTemplate::Try(const Tokenizer& tokenizer) {
  const std::vector<ChatMessage> talk = Talk(1);
  CAPSTAN_ASSIGN_OR_RETURN(const jinja::Rendered prompted,
                           Text(Messages(talk).first(1), true));
  FindName();
  FindEndOfTurn(tokenizer);
  FindToolUse(tokenizer);
  const absl::StatusOr<jinja::Rendered> answered = Text(talk, false);
  const absl::StatusOr<jinja::Rendered> asked =
      Text(Messages(talk).first(1), false);
  if (!answered.ok()) return absl::OkStatus();
  const std::string& text = answered->text;
  if (asked.ok()) {
    shape_.headers = {SharedHeader(asked->text, prompted.text, text)};
    if (absl::StartsWith(prompted.text, asked->text) &&
        absl::StartsWith(text, prompted.text)) {
      shape_.generation_prompt = prompted.text.substr(asked->text.size());
    }
  }
  // A last turn may have a thought before its answer that an earlier one lacks.
  const absl::StatusOr<jinja::Rendered> earlier = Text(Talk(2), false);
  for (const auto* const one : {&answered, &earlier}) {
    if (one->ok()) shape_.headers.push_back(HeadOf((*one)->text));
  }
  return absl::OkStatus();
}

std::string JinjaTemplate::HeadOf(const std::string& text) const {
  const size_t answer = text.find(kAnswer);
  size_t head = text.find(kQuestion);
  if (answer == std::string::npos || head >= answer) return "";
  head += std::char_traits<char>::length(kQuestion);
  size_t bytes = 0;
  const size_t end = TurnEnd(shape_, text, head, &bytes);
  if (end < answer) head = end + bytes;
  return std::string(absl::StripLeadingAsciiWhitespace(
      absl::string_view(text).substr(head, answer - head)));
}

void JinjaTemplate::FindToolUse(const Tokenizer& tokenizer) {
  constexpr char kTools[] =
      R"([{"type": "function", "function": {"name": "Fzxq", "description": )"
      R"("d", "parameters": {"type": "object", "properties": {"p": )"
      R"({"type": "string", "description": "e"}}, "required": ["p"]}}}])";
  constexpr char kCalls[] =
      R"([{"role": "user", "content": "Qzxq"}, {"role": "assistant", )"
      R"("content": "", "tool_calls": [{"id": "a1b2c3d4e", "type": )"
      R"("function", "function": {"name": "Fzxq", "arguments": {"p": )"
      R"("v"}}}]}])";
  // Whether it mentions `word`, and writes the function's name; one that
  // refuses the trial has rules of its own.
  const auto writes = [&](const char* word, const ChatInput& input) {
    if (!absl::StrContains(jinja_, word)) return false;
    const absl::StatusOr<Conversation> trial = ConversationOf(input);
    if (!trial.ok()) return false;
    const auto text =
        Text(trial->messages, *trial, /*generation_prompt=*/false);
    return !text.ok() || absl::StrContains(text->text, kFunction);
  };
  const std::vector<ChatMessage> talk = {{"system", "s"}, {"user", kQuestion}};
  ChatInput input;
  input.tools = kTools;
  input.messages = Messages(talk).last(1);
  writes_tools_ = writes("tools", input);
  if (!writes_tools_) {
    input.messages = talk;
    writes_tools_ = writes("tools", input);
  }
  input.tools = "";
  input.messages_json = kCalls;
  writes_calls_ = writes("tool_calls", input);
  // A turn of calls may end with another token.
  const auto calls = RenderInput(input);
  if (!writes_calls_ || !calls.ok()) return;
  const std::string tail = calls->text.substr(
      std::min(calls->text.rfind(kFunction), calls->text.size()));
  size_t bytes = 0;
  if (TurnEnd(shape_, tail, 0, &bytes) != std::string::npos) return;
  const std::string end = SpecialIn(tokenizer, tail, /*last=*/true);
  if (!end.empty()) shape_.ends.push_back(end);
}

void JinjaTemplate::FindName() {
  for (const ChatStyle& style : ChatStyles()) {
    if (!WritesAs(style)) continue;
    style_ = &style;
    name_ = style.name;
    return;
  }
  if (absl::StrContains(jinja_, "strftime_now")) {
    // Rows that were indexed on another day, here as in strftime_now the local
    // one, may be longer.
    std::tm local = {};
    localtime_r(&now_, &local);
    char day[32];
    absl::StrAppend(&name_, " of day ",
                    absl::string_view(day, std::strftime(day, sizeof(day),
                                                         "%Y-%m-%d", &local)));
  }
}

void JinjaTemplate::FindEndOfTurn(const Tokenizer& tokenizer) {
  if (style_ != nullptr) {
    end_of_turn_ = style_->turn_end;
    shape_.ends = {end_of_turn_};
    return;
  }
  end_of_turn_ = TextOf(tokenizer, tokenizer.special_ids().eos);
  // The last turn's may be another one.
  const auto text = Text(Talk(2), false);
  if (!text.ok()) return;
  const std::vector<std::string> pieces = absl::StrSplit(text->text, kAnswer);
  for (size_t i = 1; i < pieces.size(); ++i) {
    const std::string end = SpecialIn(tokenizer, pieces[i], /*last=*/false);
    if (end.empty()) continue;
    end_of_turn_ = end;
    shape_.ends.push_back(end);
  }
}

absl::Status JinjaTemplate::CheckRoles(absl::Span<const Value> messages) const {
  if (style_ != nullptr && !writes_tools_ && !writes_calls_) {
    std::vector<ChatMessage> plain;
    for (const Value& message : messages)
      plain.push_back({RoleOf(message), ""});
    return CheckRolesOf(*style_, plain);
  }
  if (messages.empty()) {
    return absl::InvalidArgumentError("the conversation has no message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = RoleOf(messages[i]);
    if (role == "system" || role == "user" || role == "assistant" ||
        role == "tool" || Mentions(jinja_, role)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "message ", i + 1, " has the role \"", role,
        "\", which is none of system, user, assistant and tool, and ", where_,
        " doesn't mention it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ChatText> JinjaTemplate::Render(Messages messages,
                                               bool generation_prompt) const {
  ChatInput input;
  input.messages = messages;
  input.generation_prompt = generation_prompt;
  input.find_turns = true;
  absl::StatusOr<RenderedChat> made = RenderInput(input);
  if (!made.ok() && generation_prompt) {
    // What is to be continued isn't trained on.
    input.find_turns = false;
    made = RenderInput(input);
  }
  CAPSTAN_RETURN_IF_ERROR(made.status());
  ChatText out;
  out.text = std::move(made->text);
  for (const ChatTurn& turn : made->turns) {
    out.assistant.emplace_back(turn.begin, turn.end);
  }
  return out;
}

absl::StatusOr<RenderedChat> JinjaTemplate::RenderInput(
    const ChatInput& given) const {
  ChatInput input = given;
  // A row's documents are of no use to most templates.
  if (!absl::StrContains(jinja_, "documents")) input.documents = "";
  CAPSTAN_ASSIGN_OR_RETURN(Conversation conversation, ConversationOf(input));
  const size_t messages = conversation.messages.size();
  RenderedChat out;
  if (writes_calls_) {
    ReadCalls(&conversation);
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(out.tools_as_text,
                             WriteCallsAsText(&conversation));
  }
  if (!writes_tools_) {
    CAPSTAN_ASSIGN_OR_RETURN(const bool any,
                             WriteToolsAsText(input.tools, &conversation));
    out.tools_as_text |= any;
  }
  CAPSTAN_RETURN_IF_ERROR(CheckRoles(conversation.messages));
  CAPSTAN_ASSIGN_OR_RETURN(
      jinja::Rendered all,
      Text(conversation.messages, conversation, input.generation_prompt));
  out.text = std::move(all.text);
  if (!input.find_turns) return out;
  CAPSTAN_RETURN_IF_ERROR(
      FindTurns(conversation, input.generation_prompt, all.generation, &out));
  // What was put before them isn't one of the caller's.
  const auto more =
      static_cast<int64_t>(conversation.messages.size() - messages);
  for (ChatTurn& turn : out.turns) {
    if (turn.message >= 0) turn.message -= more;
  }
  return out;
}

absl::Status JinjaTemplate::FindTurns(
    const Conversation& conversation, bool generation_prompt,
    const std::vector<std::pair<int64_t, int64_t>>& generation,
    RenderedChat* out) const {
  const std::vector<Value>& messages = conversation.messages;
  if (template_->marks_generation()) {
    std::vector<int64_t> own;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (RoleOf(messages[i]) == "assistant") own.push_back(i);
    }
    const bool known = own.size() == generation.size();
    for (size_t i = 0; i < generation.size(); ++i) {
      out->turns.push_back(
          {generation[i].first, generation[i].second, known ? own[i] : -1});
    }
    return absl::OkStatus();
  }
  const Value other = Value::List({conversation.tools, conversation.documents,
                                   Value::Of(conversation.variables)});
  const auto render = [&](absl::Span<const Value> changed,
                          bool prompts) -> absl::StatusOr<std::string> {
    CAPSTAN_ASSIGN_OR_RETURN(jinja::Rendered text,
                             Text(changed, conversation, prompts));
    return std::move(text.text);
  };
  absl::StatusOr<std::vector<ChatTurn>> turns =
      TurnFinder(shape_, messages, generation_prompt, other, out->text, render)
          .Find();
  if (!turns.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "what the assistant says in message ", turns.status().message(),
        " can't be told from the rest of the text that ", where_,
        " makes. Set loss_on: ALL, which needs no such place; or set "
        "{% generation %} .. {% endgeneration %} around what the assistant "
        "says in the template, or another chat_template"));
  }
  out->turns = *std::move(turns);
  return absl::OkStatus();
}

absl::Status JinjaTemplate::Check(const Tokenizer& tokenizer) const {
  std::vector<std::string> tokens;
  if (style_ != nullptr) {
    tokens = style_->special_tokens;
  } else {
    const auto text = Text(Talk(1), true);
    if (text.ok()) tokens = Markers(text->text);
  }
  return CheckTokens(tokens, name_, tokenizer);
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Recognise(
    const Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the tokenizer has no chat template: set one of ",
                     absl::StrJoin(Names(), ", "),
                     ", for instance chat_template: \"chatml\""));
  }
  return JinjaTemplate::Create(tokenizer, std::time(nullptr));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::FromFile(
    const std::string& path, const Tokenizer& tokenizer) {
  CAPSTAN_ASSIGN_OR_RETURN(std::string source, ReadWholeFile(path));
  return JinjaTemplate::Create(std::move(source), path,
                               absl::StrCat("the chat template ", path),
                               tokenizer, std::time(nullptr));
}

bool ChatTemplate::IsFile(absl::string_view name) {
  return name.find_first_of("/.") != absl::string_view::npos;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Find(
    const std::string& name, const Tokenizer& tokenizer) {
  if (IsFile(name)) return FromFile(name, tokenizer);
  // The tokenizer's own may know more than plain turns.
  absl::StatusOr<std::unique_ptr<ChatTemplate>> own = Recognise(tokenizer);
  if (name.empty() || (own.ok() && (*own)->name() == name)) return own;
  return Named(name);
}

}  // namespace capstan
