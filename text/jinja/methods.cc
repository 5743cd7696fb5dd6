// SPDX-License-Identifier: Apache-2.0
//
// The methods of Python's texts, lists and dicts that change nothing.
#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "text/jinja/builtin.h"
#include "text/jinja/strings.h"

namespace capstan::jinja {
namespace {

using tokenizer::NextCharacter;

// A list that was made, counted.
Value CountedList(const Call& call, std::vector<Value> items) {
  call.interpreter.Spend(static_cast<int64_t>(items.size()));
  return Value::List(std::move(items));
}

// ---- Texts.

template <bool left, bool right>
Value Strip(const Call& call) {
  if (call.Find("chars") != nullptr) call.Text("chars");
  return std::string(
      Stripped(call.self.string(), call.Find("chars"), left, right));
}

std::vector<Value> SplitAtSpace(absl::string_view text, int64_t most) {
  std::vector<Value> parts;
  while (true) {
    text = Stripped(text, nullptr, /*left=*/true, /*right=*/false);
    if (text.empty()) return parts;
    size_t end = most >= 0 && static_cast<int64_t>(parts.size()) >= most
                     ? text.size()
                     : 0;
    for (size_t next = end; next < text.size();) {
      if (IsSpace(NextCharacter(text, &next))) break;
      end = next;
    }
    parts.emplace_back(std::string(text.substr(0, end)));
    text.remove_prefix(end);
  }
}

// split, or rsplit if `last`.
template <bool last>
Value Split(const Call& call) {
  const int64_t most = call.Integer("maxsplit", -1);
  absl::string_view text = call.self.string();
  call.interpreter.SpendText(text.size());
  if (!last && call.Find("sep") == nullptr) {
    return CountedList(call, SplitAtSpace(text, most));
  }
  const std::string& sign = call.Text("sep");
  if (sign.empty()) throw Error("split wants a separator that isn't empty");
  std::vector<Value> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t found = last ? text.rfind(sign) : text.find(sign);
    if (found == absl::string_view::npos) break;
    const absl::string_view before = text.substr(0, found);
    const absl::string_view behind = text.substr(found + sign.size());
    parts.emplace_back(std::string(last ? behind : before));
    text = last ? before : behind;
  }
  parts.emplace_back(std::string(text));
  if (last) std::reverse(parts.begin(), parts.end());
  return CountedList(call, std::move(parts));
}

Value SplitLines(const Call& call) {
  const bool keep = call.Integer("keepends", 0) != 0;
  const std::string& text = call.self.string();
  std::vector<Value> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find_first_of("\n\r\v\f\x1c\x1d\x1e", begin);
    if (end == std::string::npos) end = text.size();
    size_t next = std::min(end + 1, text.size());
    if (end + 1 < text.size() && text[end] == '\r' && text[end + 1] == '\n') {
      ++next;
    }
    lines.emplace_back(text.substr(begin, (keep ? next : end) - begin));
    begin = next;
  }
  return CountedList(call, std::move(lines));
}

// Whether matches(text, affix) holds of a text, or of one of a tuple's.
template <bool (*matches)(absl::string_view, absl::string_view)>
Value HasAffix(const Call& call) {
  const std::string& text = call.self.string();
  const Value* const wanted = call.Find("affix");
  if (wanted == nullptr || !wanted->is_sequence() ||
      !wanted->sequence()->tuple) {
    return matches(text, call.Text("affix"));
  }
  const std::vector<Value>& all = wanted->sequence()->items;
  return std::any_of(all.begin(), all.end(), [&](const Value& one) {
    return one.is_string() && matches(text, one.string());
  });
}
bool HasPrefix(absl::string_view text, absl::string_view prefix) {
  return absl::StartsWith(text, prefix);
}
bool HasSuffix(absl::string_view text, absl::string_view suffix) {
  return absl::EndsWith(text, suffix);
}

Value ReplaceText(const Call& call) {
  return Replaced(call.interpreter, call.self.string(), call.Text("old"),
                  call.Text("new"), call.Integer("count", -1));
}

// In characters; -1 if it isn't there.
template <bool last>
Value FindText(const Call& call) {
  const absl::string_view text = call.self.string();
  const std::string& sub = call.Text("sub");
  const size_t found = last ? text.rfind(sub) : text.find(sub);
  return found == text.npos ? -1 : CharacterCount(text.substr(0, found));
}

Value Index(const Call& call) {
  const Value found = FindText<false>(call);
  if (found.integer() < 0) throw Error("index: not found");
  return found;
}

Value Count(const Call& call) {
  const std::string& sub = call.Text("sub");
  const std::string& text = call.self.string();
  if (sub.empty()) return CharacterCount(text) + 1;
  int64_t count = 0;
  for (size_t at = text.find(sub); at != std::string::npos;
       at = text.find(sub, at + sub.size())) {
    ++count;
  }
  return count;
}

Value JoinTexts(const Call& call) {
  const std::string& self = call.self.string();
  std::string text;
  bool first = true;
  for (const Value& item : Iterate(call.Get("iterable", Value()))) {
    if (!item.is_string()) {
      throw Error(absl::StrCat("join wants texts, not a ", item.TypeName()));
    }
    if (!first) text += self;
    first = false;
    call.interpreter.SpendText(item.string().size() + self.size());
    text += item.string();
  }
  return text;
}

template <bool (*is)(uint32_t)>
Value AllAre(const Call& call) {
  const std::string& text = call.self.string();
  for (size_t at = 0; at < text.size();) {
    if (!is(NextCharacter(text, &at))) return false;
  }
  return !text.empty();
}
bool IsDecimal(uint32_t c) {
  return utf8proc_category(static_cast<int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}

template <bool last>
Value Partition(const Call& call) {
  const std::string& sign = call.Text("sep");
  if (sign.empty()) throw Error("partition wants a separator");
  const std::string& text = call.self.string();
  const size_t found = last ? text.rfind(sign) : text.find(sign);
  if (found == std::string::npos) {
    return last ? Value::Tuple({"", "", text}) : Value::Tuple({text, "", ""});
  }
  return Value::Tuple(
      {text.substr(0, found), sign, text.substr(found + sign.size())});
}

constexpr Builtin kTextMethods[] = {
    {"strip", Strip<true, true>, "chars/"},
    {"lstrip", Strip<true, false>, "chars/"},
    {"rstrip", Strip<false, true>, "chars/"},
    {"split", Split<false>, "sep,maxsplit"},
    {"rsplit", Split<true>, "sep,maxsplit"},
    {"splitlines", SplitLines, "keepends"},
    {"startswith", HasAffix<HasPrefix>, "affix/", 1},
    {"endswith", HasAffix<HasSuffix>, "affix/", 1},
    {"replace", ReplaceText, "old,new,count/", 2},
    {"upper", [](const Call& c) -> Value { return Upper(c.self.string()); }},
    {"lower", [](const Call& c) -> Value { return Lower(c.self.string()); }},
    {"title",
     [](const Call& c) -> Value {
       return Title(c.self.string(), /*python=*/true);
     }},
    {"capitalize",
     [](const Call& c) -> Value { return Capitalized(c.self.string()); }},
    {"find", FindText<false>, "sub/", 1},
    {"rfind", FindText<true>, "sub/", 1},
    {"index", Index, "sub/", 1},
    {"count", Count, "sub/", 1},
    {"join", JoinTexts, "iterable/", 1},
    {"isdigit", AllAre<IsDecimal>},
    {"isalpha", AllAre<IsLetter>},
    {"isspace", AllAre<IsSpace>},
    {"removeprefix",
     [](const Call& c) -> Value {
       return std::string(absl::StripPrefix(c.self.string(), c.Text("prefix")));
     },
     "prefix/", 1},
    {"removesuffix",
     [](const Call& c) -> Value {
       return std::string(absl::StripSuffix(c.self.string(), c.Text("suffix")));
     },
     "suffix/", 1},
    {"partition", Partition<false>, "sep/", 1},
    {"rpartition", Partition<true>, "sep/", 1},
    {"format",
     [](const Call& c) -> Value {
       return Format(c.interpreter, c.self.string(), c.given);
     },
     "*"},
};

// ---- Lists.

Value ListIndex(const Call& call) {
  const std::vector<Value>& items = call.self.sequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(items[i], call.Get("value", {}))) return static_cast<int64_t>(i);
  }
  throw Error("index: not found");
}

Value ListCount(const Call& call) {
  const std::vector<Value>& items = call.self.sequence()->items;
  const Value value = call.Get("value", {});
  return static_cast<int64_t>(
      std::count_if(items.begin(), items.end(),
                    [&](const Value& item) { return Equal(item, value); }));
}

Value Copy(const Call& call) { return call.self; }

// Those without a function change the value, which templates can't.
constexpr Builtin kListMethods[] = {
    {"index", ListIndex, "value/", 1},
    {"count", ListCount, "value/", 1},
    {"copy", Copy},
    {"append", nullptr},
    {"extend", nullptr},
    {"insert", nullptr},
    {"pop", nullptr},
    {"remove", nullptr},
    {"clear", nullptr},
    {"reverse", nullptr},
    {"sort", nullptr},
};

// ---- Dicts.

Value DictItems(const Call& call) {
  std::vector<Value> items;
  for (const auto& [key, value] : call.self.dict()->items) {
    items.push_back(Value::Tuple({key, value}));
  }
  return CountedList(call, std::move(items));
}

Value Values(const Call& call) {
  std::vector<Value> items;
  for (const auto& [key, value] : call.self.dict()->items) {
    items.push_back(value);
  }
  return CountedList(call, std::move(items));
}

Value GetItem(const Call& call) {
  const Value key = call.Get("key", {});
  CheckHashable(key);
  const Value* const found = call.self.dict()->Find(key);
  return found != nullptr ? *found : call.Get("default", {});
}

constexpr Builtin kDictMethods[] = {
    {"items", DictItems},
    {"keys", [](const Call& c) { return Value::List(Iterate(c.self)); }},
    {"values", Values},
    {"get", GetItem, "key,default/", 1},
    {"copy", Copy},
    {"update", nullptr},
    {"pop", nullptr},
    {"popitem", nullptr},
    {"clear", nullptr},
    {"setdefault", nullptr},
};

}  // namespace

absl::optional<Value> MethodOf(const Value& of, absl::string_view name) {
  const Builtin* const method = of.is_string() ? FindBuiltin(kTextMethods, name)
                                : of.is_sequence()
                                    ? FindBuiltin(kListMethods, name)
                                : of.is_dict() ? FindBuiltin(kDictMethods, name)
                                               : nullptr;
  if (method == nullptr) return absl::nullopt;
  if (method->function != nullptr) return MakeFunction(*method, of);
  return Value(
      Undefined{absl::StrCat("templates can't change a ", of.TypeName())});
}

}  // namespace capstan::jinja
