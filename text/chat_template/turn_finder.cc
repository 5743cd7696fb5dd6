// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/turn_finder.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/chat_template/conversation.h"
#include "text/jinja/strings.h"

namespace capstan {
namespace {

using jinja::Dict;
using jinja::Stripped;
using jinja::Value;

constexpr char kThought[] = "<think>";
constexpr char kThoughtEnd[] = "</think>";
// Private characters around it, so that no text begins or ends alike and no
// template changes it.
constexpr char kMark[] = "\xef\xa3\xb0Mzxq\xef\xa3\xb1";  // U+F8F0, U+F8F1

size_t CommonSuffix(absl::string_view a, absl::string_view b, size_t most) {
  size_t n = 0;
  while (n < most && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return n;
}

// Whether a text in the value has `part`.
bool AnyHas(const Value& value, absl::string_view part) {
  if (value.is_string()) return absl::StrContains(value.string(), part);
  const auto has = [&](const Value& one) { return AnyHas(one, part); };
  if (const jinja::Sequence* const list = value.sequence()) {
    return std::any_of(list->items.begin(), list->items.end(), has);
  }
  if (const Dict* const dict = value.dict()) {
    return std::any_of(
        dict->items.begin(), dict->items.end(),
        [&](const auto& item) { return has(item.first) || has(item.second); });
  }
  return false;
}

bool IsPlain(const Value& message) {
  return message.dict()->items.size() == 2 &&
         message.dict()->Find("content") != nullptr;
}

// The call with a mark before its function's name, or behind its arguments;
// nullopt if it has none.
absl::optional<Value> MarkedCall(const Value& call, bool name) {
  if (!call.is_dict()) return absl::nullopt;
  const Value* const inner = call.dict()->Find("function");
  if (inner != nullptr && inner->is_dict()) {
    const absl::optional<Value> marked = MarkedCall(*inner, name);
    if (!marked.has_value()) return absl::nullopt;
    return With(call, "function", *marked);
  }
  const Value* const old = call.dict()->Find(name ? "name" : "arguments");
  if (name) {
    if (old == nullptr || !old->is_string()) return absl::nullopt;
    return With(call, "name", absl::StrCat(kMark, old->string()));
  }
  if (old != nullptr && old->is_string()) {
    return With(call, "arguments", absl::StrCat(old->string(), kMark));
  }
  if (old != nullptr && !old->is_dict()) return absl::nullopt;
  Dict arguments = old == nullptr ? Dict() : *old->dict();
  arguments.Set(kMark, kMark);
  return With(call, "arguments", Value::Of(std::move(arguments)));
}

struct Mark {
  Value message;
  // A function's name may come again, with its result: where the change ends
  // says nothing then.
  bool shows_end = true;
};

// The message with marks in what it holds, one after the other.
std::vector<Mark> Marks(const Value& message) {
  std::vector<Mark> marked;
  Value reasoning = message;
  for (const char* const key : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* const old = message.dict()->Find(key);
    if (old != nullptr && old->is_string()) {
      reasoning = With(reasoning, key, kMark);
    }
  }
  if (!TextOf(message, "reasoning_content").empty()) {
    marked.push_back({std::move(reasoning)});
  }
  if (message.dict()->Find("content") != nullptr) {
    marked.push_back({With(message, "content", kMark)});
  }
  if (const jinja::Sequence* const calls = CallsOf(message)) {
    for (const bool name : {true, false}) {
      std::vector<Value> items = calls->items;
      Value& one = name ? items.front() : items.back();
      const absl::optional<Value> call = MarkedCall(one, name);
      if (!call.has_value()) continue;
      one = *call;
      marked.push_back(
          {With(message, "tool_calls", Value::List(std::move(items))),
           /*shows_end=*/!name});
    }
  }
  return marked;
}

absl::Status Untold() { return absl::InvalidArgumentError(""); }

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + most, b.begin()).first -
         a.begin();
}

}  // namespace

size_t TurnEnd(const TurnShape& shape, absl::string_view text, size_t from,
               size_t* bytes) {
  size_t first = std::string::npos;
  *bytes = 0;
  for (const std::string& token : shape.ends) {
    const size_t at = text.find(token, from);
    if (at >= first) continue;
    first = at;
    *bytes = token.size();
  }
  return first;
}

std::string SharedHeader(absl::string_view before, absl::string_view prompted,
                         absl::string_view turn) {
  if (!absl::StartsWith(prompted, before) || !absl::StartsWith(turn, before)) {
    return "";
  }
  const size_t same = CommonPrefix(prompted, turn);
  absl::string_view shared = turn.substr(before.size(), same - before.size());
  const size_t open = shared.rfind('<');
  if (open != shared.npos && turn.find('>', before.size() + open) >= same) {
    shared = shared.substr(0, open);
  }
  return std::string(shared);
}

absl::StatusOr<std::vector<ChatTurn>> TurnFinder::Find() const {
  const std::vector<size_t> begins = AllBegins();
  std::vector<ChatTurn> turns;
  size_t from = 0;
  size_t number = 0;  // of the assistant's messages
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (RoleOf(messages_[i]) != "assistant") continue;
    const absl::optional<size_t> begin =
        begins.empty() ? BeginOf(i, from) : begins[number];
    ++number;
    absl::optional<Range> range =
        begin.has_value() ? Plainly(i, *begin) : absl::nullopt;
    if (!range.has_value()) {
      const auto marked = Marked(i, begin, from);
      if (!marked.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(i + 1));
      }
      range = *marked;
    }
    if (!range.has_value()) continue;
    turns.push_back({static_cast<int64_t>(range->begin),
                     static_cast<int64_t>(range->end),
                     static_cast<int64_t>(i)});
    from = range->end;
  }
  return turns;
}

std::vector<size_t> TurnFinder::AllBegins() const {
  const std::string& prompt = shape_.generation_prompt;
  if (prompt.empty() || AnyHas(other_, prompt)) return {};
  size_t turns = 0;
  for (const Value& message : messages_) {
    if (AnyHas(message, prompt)) return {};
    if (RoleOf(message) == "assistant") ++turns;
  }
  std::vector<size_t> begins;
  for (size_t at = text_.find(prompt); at != std::string::npos;
       at = text_.find(prompt, at)) {
    at += prompt.size();
    begins.push_back(at);
  }
  if (begins.size() != turns + (prompts_ ? 1 : 0)) return {};
  return begins;
}

absl::optional<size_t> TurnFinder::BeginOf(size_t turn, size_t from) const {
  // Before the first message templates differ: there may be a default system
  // turn, or an error.
  if (turn == 0) return absl::nullopt;
  const Messages before = messages_.first(turn);
  const auto prompted = render_(before, /*generation_prompt=*/true);
  if (!prompted.ok()) return absl::nullopt;
  if (absl::StartsWith(text_, *prompted)) {
    return prompted->size() >= from ? absl::make_optional(prompted->size())
                                    : absl::nullopt;
  }
  // The prompt opens what this turn doesn't have, such as a thought.
  const auto plain = render_(before, /*generation_prompt=*/false);
  if (!plain.ok() || plain->size() < from) return absl::nullopt;
  const std::string header = SharedHeader(*plain, *prompted, text_);
  if (header.empty()) return absl::nullopt;
  return plain->size() + header.size();
}

absl::optional<TurnFinder::Range> TurnFinder::Plainly(size_t turn,
                                                      size_t begin) const {
  if (!IsPlain(messages_[turn])) return absl::nullopt;
  const absl::optional<size_t> content_end =
      ContentEnd(TextOf(messages_[turn], "content"), begin);
  if (!content_end.has_value()) return absl::nullopt;
  size_t bytes = 0;
  size_t end = TurnEnd(shape_, text_, *content_end, &bytes);
  end = end == std::string::npos ? *content_end : end + bytes;
  if (turn + 1 < messages_.size()) {
    const absl::string_view next =
        Stripped(TextOf(messages_[turn + 1], "content"));
    const absl::string_view behind =
        absl::string_view(text_).substr(*content_end, end - *content_end);
    if (!next.empty() && absl::StrContains(behind, next)) return absl::nullopt;
  }
  return Range{begin, end};
}

absl::optional<size_t> TurnFinder::ContentEnd(const std::string& content,
                                              size_t from) const {
  const absl::string_view whole = Stripped(content);
  size_t bytes = 0;
  // A token that ends a turn before the content: it is another turn's. Without
  // such a token only what begins here is surely this turn's.
  const size_t turn_end = TurnEnd(shape_, text_, from, &bytes);
  const size_t latest =
      turn_end != std::string::npos
          ? turn_end
          : Stripped(absl::string_view(text_).substr(from)).data() -
                text_.data();
  size_t at = text_.find(whole.data(), from, whole.size());
  if (at <= latest && at != std::string::npos) return at + whole.size();
  // Templates write the white space around thoughts anew.
  const size_t thought_end = content.find(kThoughtEnd);
  if (thought_end == std::string::npos) return absl::nullopt;
  absl::string_view thought = absl::string_view(content).substr(0, thought_end);
  if (const size_t begin = thought.find(kThought); begin != thought.npos) {
    thought.remove_prefix(begin + std::char_traits<char>::length(kThought));
  }
  thought = Stripped(thought);
  const absl::string_view answer = Stripped(absl::string_view(content).substr(
      thought_end + std::char_traits<char>::length(kThoughtEnd)));
  at = text_.find(thought.data(), from, thought.size());
  if (at != std::string::npos && at <= turn_end &&
      turn_end != std::string::npos) {
    at = text_.find(answer.data(), at + thought.size(), answer.size());
    if (at != std::string::npos && at <= turn_end) return at + answer.size();
  }
  // Or drop the thought: the turn is the answer alone.
  const absl::string_view turn = Stripped(absl::string_view(text_).substr(
      from, turn_end == std::string::npos ? 0 : turn_end - from));
  if (turn != answer || answer.empty()) return absl::nullopt;
  return turn_end;
}

absl::StatusOr<absl::optional<TurnFinder::Range>> TurnFinder::Compare(
    size_t turn, const Value& changed) const {
  std::vector<Value> messages(messages_.begin(), messages_.end());
  messages[turn] = changed;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string other,
                           render_(messages, prompts_));
  if (other == text_) return absl::optional<Range>();
  const size_t begin = CommonPrefix(text_, other);
  const size_t same =
      CommonSuffix(text_, other, std::min(text_.size(), other.size()) - begin);
  // Nothing but the mark may have changed the text.
  const absl::string_view between =
      absl::string_view(other).substr(begin, other.size() - same - begin);
  if (!absl::StrContains(between, kMark)) return Untold();
  return absl::make_optional(Range{begin, text_.size() - same});
}

absl::optional<size_t> TurnFinder::HeaderEnd(size_t from, size_t to) const {
  for (const std::string& header : shape_.headers) {
    if (header.empty() || to < header.size()) continue;
    const size_t at = text_.rfind(header, to - header.size());
    if (at == std::string::npos || at < from) continue;
    // An end in between is that of another turn, which has the header.
    size_t bytes = 0;
    const size_t end = at + header.size();
    if (TurnEnd(shape_, text_, end, &bytes) >= to) return end;
  }
  return absl::nullopt;
}

absl::StatusOr<absl::optional<TurnFinder::Range>> TurnFinder::Marked(
    size_t turn, absl::optional<size_t> begin, size_t from) const {
  if (absl::StrContains(text_, kMark)) return Untold();
  absl::optional<Range> written;
  bool rendered = false;
  for (const Mark& mark : Marks(messages_[turn])) {
    const auto compared = Compare(turn, mark.message);
    // A template may refuse a mark, not all of them.
    if (!compared.ok() && !compared.status().message().empty()) continue;
    CAPSTAN_RETURN_IF_ERROR(compared.status());
    rendered = true;
    if (!compared->has_value()) continue;
    if (!written.has_value()) written = {(*compared)->begin, 0};
    written->begin = std::min(written->begin, (*compared)->begin);
    if (mark.shows_end) {
      written->end = std::max(written->end, (*compared)->end);
    }
  }
  if (!rendered) return Untold();
  if (!written.has_value()) return absl::optional<Range>();
  if (written->begin < from || written->end == 0) return Untold();
  Range range;
  size_t bytes = 0;
  if (begin.has_value() && *begin <= written->begin) {
    range.begin = *begin;
  } else {
    const absl::optional<size_t> header = HeaderEnd(from, written->begin);
    if (!header.has_value()) return Untold();
    range.begin = *header;
  }
  range.end = TurnEnd(shape_, text_, written->end, &bytes);
  if (range.end == std::string::npos) {
    // A text that ends with the message needs no token.
    const bool last = turn + 1 == messages_.size() && !prompts_;
    const bool calls = CallsOf(messages_[turn]) != nullptr;
    if (!last && (calls || !shape_.ends.empty())) return Untold();
    range.end =
        calls ? Stripped(text_).data() + Stripped(text_).size() - text_.data()
              : written->end;
  }
  range.end += bytes;
  if (turn + 1 < messages_.size()) {
    for (const Mark& mark : Marks(messages_[turn + 1])) {
      const auto next = Compare(turn + 1, mark.message);
      if (next.ok() && next->has_value() && (*next)->begin < range.end) {
        return Untold();
      }
    }
  }
  return absl::make_optional(range);
}

}  // namespace capstan
