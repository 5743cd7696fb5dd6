// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/jinja_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;
using Messages = absl::Span<const ChatMessage>;

constexpr char kOwn[] = "the tokenizer's own";
constexpr char kWhere[] =
    "the tokenizer's chat template (chat_template.jinja or "
    "tokenizer_config.json)";
// Contents of a trial that no template spells.
constexpr char kQuestion[] = "Qzxq";
constexpr char kAnswer[] = "Azxq";
constexpr char kThought[] = "<think>";
constexpr char kThoughtEnd[] = "</think>";

std::string TextOf(const Tokenizer& tokenizer, int64_t id) {
  return id < 0 ? "" : tokenizer.Decode({id});
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

absl::Status OfTemplate(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(kWhere,
                   absl::StartsWith(status.message(), "line ") ? ", " : ": ",
                   status.message()));
}

// The jinja source in quotes: the template looks at this role.
bool Mentions(const std::string& jinja, const std::string& role) {
  return absl::StrContains(jinja, absl::StrCat("'", role, "'")) ||
         absl::StrContains(jinja, absl::StrCat("\"", role, "\""));
}

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + most, b.begin()).first -
         a.begin();
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

}  // namespace

JinjaTemplate::JinjaTemplate(std::string jinja,
                             std::unique_ptr<jinja::Template> parsed,
                             const Tokenizer& tokenizer, std::time_t now)
    : jinja_(std::move(jinja)),
      template_(std::move(parsed)),
      now_(now),
      special_tokens_(SpecialTokens(tokenizer)),
      name_(kOwn) {}

absl::StatusOr<std::unique_ptr<JinjaTemplate>> JinjaTemplate::Create(
    const Tokenizer& tokenizer, std::time_t now) {
  std::string source = tokenizer.chat_template();
  jinja::Limits limits;
  limits.steps = 4'000'000;
  absl::StatusOr<std::unique_ptr<jinja::Template>> parsed =
      jinja::Template::Parse(source, limits);
  CAPSTAN_RETURN_IF_ERROR(OfTemplate(parsed.status()));
  auto made = absl::WrapUnique(
      new JinjaTemplate(std::move(source), *std::move(parsed), tokenizer, now));
  CAPSTAN_RETURN_IF_ERROR(made->Try(tokenizer));
  return made;
}

absl::StatusOr<jinja::Rendered> JinjaTemplate::Text(
    Messages messages, bool generation_prompt) const {
  Json variables = Json::object();
  Json& list = variables["messages"] = Json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = generation_prompt;
  for (const auto& [name, text] : special_tokens_) variables[name] = text;
  absl::StatusOr<jinja::Rendered> text = template_->Render(variables, now_);
  if (!text.ok()) return OfTemplate(text.status());
  return text;
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
  const std::vector<ChatMessage> talk = {{"user", kQuestion},
                                         {"assistant", kAnswer}};
  CAPSTAN_ASSIGN_OR_RETURN(const jinja::Rendered prompted,
                           Text(Messages(talk).first(1), true));
  const absl::StatusOr<jinja::Rendered> answered = Text(talk, false);
  const std::string text = answered.ok() ? answered->text : "";
  const size_t answer = text.rfind(kAnswer);
  const std::string tail =
      answer == std::string::npos
          ? ""
          : text.substr(answer + std::char_traits<char>::length(kAnswer));
  const absl::StatusOr<jinja::Rendered> asked =
      Text(Messages(talk).first(1), false);
  if (asked.ok() && absl::StartsWith(prompted.text, asked->text) &&
      absl::StartsWith(text, prompted.text)) {
    generation_prompt_ = prompted.text.substr(asked->text.size());
  }
  FindName();
  FindEndOfTurn(tokenizer);
  // What precedes the answer since the question, or its turn's end.
  size_t head = text.find(kQuestion);
  if (tail.empty() || head >= answer) return absl::OkStatus();
  head += std::char_traits<char>::length(kQuestion);
  size_t bytes = 0;
  const size_t end = TurnEnd(text, head, &bytes);
  if (end < answer) head = end + bytes;
  prompt_ = std::string(absl::StripLeadingAsciiWhitespace(
      absl::string_view(text).substr(head, answer - head)));
  return absl::OkStatus();
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
    turn_ends_ = {end_of_turn_};
    return;
  }
  end_of_turn_ = TextOf(tokenizer, tokenizer.special_ids().eos);
  // The last turn's may be another one.
  const auto text = Text(std::vector<ChatMessage>{{"user", kQuestion},
                                                  {"assistant", kAnswer},
                                                  {"user", kQuestion},
                                                  {"assistant", kAnswer}},
                         false);
  if (!text.ok()) return;
  const std::vector<std::string> pieces = absl::StrSplit(text->text, kAnswer);
  for (size_t i = 1; i < pieces.size(); ++i) {
    const Encoding tokens = tokenizer.EncodeWithPlaces(pieces[i]);
    for (size_t t = 0; t < tokens.ids.size(); ++t) {
      if (!tokenizer.IsSpecial(tokens.ids[t])) continue;
      end_of_turn_ =
          pieces[i].substr(tokens.begins[t], tokens.ends[t] - tokens.begins[t]);
      turn_ends_.push_back(end_of_turn_);
      break;
    }
  }
}

size_t JinjaTemplate::TurnEnd(const std::string& text, size_t from,
                              size_t* bytes) const {
  size_t first = std::string::npos;
  *bytes = 0;
  for (const std::string& token : turn_ends_) {
    const size_t at = text.find(token, from);
    if (at >= first) continue;
    first = at;
    *bytes = token.size();
  }
  return first;
}

absl::Status JinjaTemplate::CheckRoles(Messages messages) const {
  if (style_ != nullptr) return CheckRolesOf(*style_, messages);
  if (messages.empty()) {
    return absl::InvalidArgumentError("the conversation has no message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system" || role == "user" || role == "assistant" ||
        role == "tool" || Mentions(jinja_, role)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "message ", i + 1, " has the role \"", role,
        "\", which is none of system, user, assistant and tool, and ", kWhere,
        " doesn't mention it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ChatText> JinjaTemplate::Render(Messages messages,
                                               bool generation_prompt) const {
  CAPSTAN_RETURN_IF_ERROR(CheckRoles(messages));
  CAPSTAN_ASSIGN_OR_RETURN(jinja::Rendered all,
                           Text(messages, generation_prompt));
  ChatText out;
  out.text = std::move(all.text);
  if (template_->marks_generation()) {
    out.assistant = std::move(all.generation);
    return out;
  }
  const std::vector<size_t> begins =
      AllBegins(messages, generation_prompt, out.text);
  size_t from = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    const absl::StatusOr<size_t> begin =
        begins.empty() ? BeginOf(messages, i, out.text, from)
                       : begins[out.assistant.size()];
    const auto range = RangeOf(messages, i, out.text, begin);
    if (!range.ok()) {
      // What is to be continued isn't trained on.
      if (!generation_prompt) return range.status();
      out.assistant.clear();
      break;
    }
    out.assistant.push_back(*range);
    from = static_cast<size_t>(range->second);
  }
  return out;
}

std::vector<size_t> JinjaTemplate::AllBegins(Messages messages,
                                             bool generation_prompt,
                                             const std::string& text) const {
  if (generation_prompt_.empty()) return {};
  size_t turns = 0;
  for (const ChatMessage& message : messages) {
    if (absl::StrContains(message.content, generation_prompt_)) return {};
    if (message.role == "assistant") ++turns;
  }
  std::vector<size_t> begins;
  for (size_t at = text.find(generation_prompt_); at != std::string::npos;
       at = text.find(generation_prompt_, at)) {
    at += generation_prompt_.size();
    begins.push_back(at);
  }
  if (begins.size() != turns + (generation_prompt ? 1 : 0)) return {};
  return begins;
}

absl::StatusOr<size_t> JinjaTemplate::BeginOf(Messages messages, size_t turn,
                                              const std::string& text,
                                              size_t from) const {
  // Before the first message templates differ: there may be a default system
  // turn, or an error.
  if (turn > 0) {
    const Messages before = messages.first(turn);
    const auto prompted = Text(before, /*generation_prompt=*/true);
    if (prompted.ok()) {
      const size_t same = CommonPrefix(prompted->text, text);
      if (same == prompted->text.size() && same >= from) return same;
      // The prompt opens what this turn doesn't have, such as a thought.
      const auto plain = Text(before, /*generation_prompt=*/false);
      if (plain.ok() && absl::StartsWith(text, plain->text) &&
          same >= plain->text.size() && same >= from) {
        // Not inside of a tag that begins alike: <think> and </think>.
        const size_t open = text.rfind('<', same - 1);
        const bool inside = same > 0 && open != std::string::npos &&
                            open >= std::max(from, plain->text.size()) &&
                            text.find('>', open) >= same;
        return inside ? open : same;
      }
    }
  }
  const size_t prompt =
      prompt_.empty() ? std::string::npos : text.find(prompt_, from);
  if (prompt != std::string::npos) return prompt + prompt_.size();
  return absl::InvalidArgumentError("");
}

absl::optional<size_t> JinjaTemplate::ContentEnd(const std::string& content,
                                                 const std::string& text,
                                                 size_t from) const {
  const absl::string_view whole = TrimUnicode(content);
  size_t bytes = 0;
  // A token that ends a turn before the content: it is another turn's.
  const size_t turn_end = TurnEnd(text, from, &bytes);
  size_t at = text.find(whole.data(), from, whole.size());
  if (at <= turn_end && at != std::string::npos) return at + whole.size();
  // Templates write the white space around thoughts anew.
  const size_t thought_end = content.find(kThoughtEnd);
  if (thought_end == std::string::npos) return absl::nullopt;
  absl::string_view thought = absl::string_view(content).substr(0, thought_end);
  if (const size_t begin = thought.find(kThought); begin != thought.npos) {
    thought.remove_prefix(begin + std::char_traits<char>::length(kThought));
  }
  thought = TrimUnicode(thought);
  at = text.find(thought.data(), from, thought.size());
  if (at == std::string::npos || at > turn_end) return absl::nullopt;
  const absl::string_view answer =
      TrimUnicode(absl::string_view(content).substr(
          thought_end + std::char_traits<char>::length(kThoughtEnd)));
  at = text.find(answer.data(), at + thought.size(), answer.size());
  if (at == std::string::npos || at > turn_end) return absl::nullopt;
  return at + answer.size();
}

absl::StatusOr<std::pair<int64_t, int64_t>> JinjaTemplate::RangeOf(
    Messages messages, size_t turn, const std::string& text,
    const absl::StatusOr<size_t>& found) const {
  size_t bytes = 0;
  const absl::optional<size_t> content_end =
      found.ok() ? ContentEnd(messages[turn].content, text, *found)
                 : absl::nullopt;
  if (content_end.has_value()) {
    size_t end = TurnEnd(text, *content_end, &bytes);
    end = end == std::string::npos ? *content_end : end + bytes;
    const absl::string_view behind =
        absl::string_view(text).substr(*content_end, end - *content_end);
    const absl::string_view next = turn + 1 < messages.size()
                                       ? TrimUnicode(messages[turn + 1].content)
                                       : absl::string_view();
    if (next.empty() || !absl::StrContains(behind, next)) {
      return std::pair(static_cast<int64_t>(*found), static_cast<int64_t>(end));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "what the assistant says in message ", turn + 1,
      " can't be found in the text that ", kWhere,
      " makes: it writes earlier messages anew, or drops parts of them. Give "
      "each such turn a conversation of its own, in which it is the last "
      "message; set another chat_template; or set {% generation %} .. "
      "{% endgeneration %} around what the assistant says in the template"));
}

absl::Status JinjaTemplate::Check(const Tokenizer& tokenizer) const {
  std::vector<std::string> tokens;
  if (style_ != nullptr) {
    tokens = style_->special_tokens;
  } else {
    const std::vector<ChatMessage> talk = {{"user", kQuestion},
                                           {"assistant", kAnswer}};
    const auto text = Text(talk, true);
    if (text.ok()) tokens = Markers(text->text);
  }
  return CheckTokens(tokens, name_, tokenizer);
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Recognise(
    const Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty()) {
    return absl::NotFoundError(
        absl::StrCat("the tokenizer has no chat template: set one of ",
                     absl::StrJoin(Names(), ", "),
                     ", for instance chat_template: \"chatml\""));
  }
  return JinjaTemplate::Create(tokenizer, std::time(nullptr));
}

}  // namespace capstan
