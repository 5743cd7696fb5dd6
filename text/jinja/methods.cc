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
#include "text/jinja/interpreter.h"
#include "text/jinja/signature.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {
namespace {

using tokenizer::NextCharacter;

const std::string& TextArgument(const Arguments& given, size_t place,
                                const char* name, const char* method) {
  const Value* const found = given.Find(place, name);
  if (found == nullptr || !found->is_string()) {
    throw Error(absl::StrCat(method, " wants a text, not a ",
                             found == nullptr ? "nothing" : found->TypeName()));
  }
  return found->string();
}

int64_t NumberArgument(const Arguments& given, size_t place, const char* name,
                       int64_t otherwise) {
  const Value* const found = given.Find(place, name);
  if (found == nullptr) return otherwise;
  if (!found->is_int() && !found->is_bool()) {
    throw Error(absl::StrCat("`", name, "` is to be an integer, not a ",
                             found->TypeName()));
  }
  return found->integer();
}

// ---- Texts.

template <bool begin, bool end>
Value Strip(Interpreter&, const Value& self, const Arguments& given) {
  const Value* const characters = given.Find(0, "chars");
  if (characters == nullptr || characters->is_none()) {
    return Stripped(self.string(), nullptr, begin, end);
  }
  return Stripped(self.string(), &TextArgument(given, 0, "chars", "strip"),
                  begin, end);
}

std::vector<Value> SplitAtSpace(absl::string_view text, int64_t most) {
  std::vector<Value> parts;
  size_t at = 0;
  while (true) {
    const std::string rest =
        Stripped(text.substr(at), nullptr, /*begin=*/true, /*end=*/false);
    if (rest.empty()) return parts;
    at = text.size() - rest.size();
    if (most >= 0 && static_cast<int64_t>(parts.size()) >= most) {
      parts.emplace_back(std::string(text.substr(at)));
      return parts;
    }
    size_t end = at;
    for (size_t next = at; next < text.size();) {
      if (IsSpace(NextCharacter(text, &next))) break;
      end = next;
    }
    parts.emplace_back(std::string(text.substr(at, end - at)));
    at = end;
  }
}

Value Split(Interpreter& interpreter, const Value& self,
            const Arguments& given) {
  const int64_t most = NumberArgument(given, 1, "maxsplit", -1);
  absl::string_view text = self.string();
  interpreter.SpendText(text.size());
  const Value* const separator = given.Find(0, "sep");
  if (separator == nullptr || separator->is_none()) {
    std::vector<Value> parts = SplitAtSpace(text, most);
    interpreter.Spend(static_cast<int64_t>(parts.size()));
    return Value::List(std::move(parts));
  }
  const std::string& sign = TextArgument(given, 0, "sep", "split");
  if (sign.empty()) throw Error("split wants a separator that isn't empty");
  std::vector<Value> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t found = text.find(sign);
    if (found == absl::string_view::npos) break;
    parts.emplace_back(std::string(text.substr(0, found)));
    text.remove_prefix(found + sign.size());
  }
  parts.emplace_back(std::string(text));
  interpreter.Spend(static_cast<int64_t>(parts.size()));
  return Value::List(std::move(parts));
}

Value RightSplit(Interpreter& interpreter, const Value& self,
                 const Arguments& given) {
  const int64_t most = NumberArgument(given, 1, "maxsplit", -1);
  absl::string_view text = self.string();
  interpreter.SpendText(text.size());
  const std::string& sign = TextArgument(given, 0, "sep", "rsplit");
  if (sign.empty()) throw Error("rsplit wants a separator that isn't empty");
  std::vector<Value> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t found = text.rfind(sign);
    if (found == absl::string_view::npos) break;
    parts.emplace_back(std::string(text.substr(found + sign.size())));
    text = text.substr(0, found);
  }
  parts.emplace_back(std::string(text));
  std::reverse(parts.begin(), parts.end());
  interpreter.Spend(static_cast<int64_t>(parts.size()));
  return Value::List(std::move(parts));
}

Value SplitLines(Interpreter& interpreter, const Value& self,
                 const Arguments& given) {
  const bool keep = NumberArgument(given, 0, "keepends", 0) != 0;
  const std::string& text = self.string();
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
  interpreter.Spend(static_cast<int64_t>(lines.size()));
  return Value::List(std::move(lines));
}

// The part of a text that the arguments at places 1 and 2, begin and end in
// characters, choose as a slice does.
struct Part {
  absl::string_view text;
  int64_t begin = 0;  // in characters
};

Part PartOf(const Value& self, const Arguments& given) {
  Part part{self.string()};
  if (given.positional.size() < 2) return part;
  const std::vector<std::string> all = Characters(part.text);
  const auto length = static_cast<int64_t>(all.size());
  const auto place = [&](size_t at, const char* name, int64_t otherwise) {
    if (given.positional.size() <= at || given.positional[at].is_none()) {
      return otherwise;
    }
    const int64_t number = NumberArgument(given, at, name, otherwise);
    return std::clamp<int64_t>(number < 0 ? number + length : number, 0,
                               length);
  };
  part.begin = place(1, "start", 0);
  const int64_t end = std::max(part.begin, place(2, "end", length));
  size_t bytes_before = 0;
  size_t bytes = 0;
  for (int64_t i = 0; i < end; ++i) {
    (i < part.begin ? bytes_before : bytes) += all[i].size();
  }
  part.text = part.text.substr(bytes_before, bytes);
  return part;
}

// A text, or one of a tuple's.
template <typename Matches>
bool AnyText(const Arguments& given, const char* method,
             const Matches& matches) {
  const Value* const wanted = given.Find(0, "prefix");
  if (wanted != nullptr && wanted->sequence() != nullptr &&
      wanted->sequence()->tuple) {
    for (const Value& one : wanted->sequence()->items) {
      if (one.is_string() && matches(one.string())) return true;
    }
    return false;
  }
  return matches(TextArgument(given, 0, "prefix", method));
}

Value StartsWith(Interpreter&, const Value& self, const Arguments& given) {
  return AnyText(given, "startswith", [&](const std::string& text) {
    return absl::StartsWith(PartOf(self, given).text, text);
  });
}
Value EndsWith(Interpreter&, const Value& self, const Arguments& given) {
  return AnyText(given, "endswith", [&](const std::string& text) {
    return absl::EndsWith(PartOf(self, given).text, text);
  });
}

Value Replace(Interpreter& interpreter, const Value& self,
              const Arguments& given) {
  const std::string& old = TextArgument(given, 0, "old", "replace");
  const std::string& with = TextArgument(given, 1, "new", "replace");
  // Each character may be replaced by all of `with`.
  interpreter.SpendText(self.string().size());
  if (with.size() > old.size()) {
    interpreter.SpendText(
        (self.string().size() / std::max<size_t>(1, old.size()) + 1) *
        with.size());
  }
  return Replaced(self.string(), old, with,
                  NumberArgument(given, 2, "count", -1));
}

Value UpperOf(Interpreter&, const Value& self, const Arguments&) {
  return Upper(self.string());
}
Value LowerOf(Interpreter&, const Value& self, const Arguments&) {
  return Lower(self.string());
}
Value TitleOf(Interpreter&, const Value& self, const Arguments&) {
  return Title(self.string(), /*python=*/true);
}
Value CapitalizeOf(Interpreter&, const Value& self, const Arguments&) {
  return Capitalized(self.string());
}

// The index, in characters of the whole text, of the byte found; -1 if npos.
int64_t CharacterIndex(const Part& part, size_t found) {
  return found == absl::string_view::npos
             ? -1
             : part.begin + CharacterCount(part.text.substr(0, found));
}

Value Find(Interpreter&, const Value& self, const Arguments& given) {
  const Part part = PartOf(self, given);
  return CharacterIndex(part,
                        part.text.find(TextArgument(given, 0, "sub", "find")));
}
Value RightFind(Interpreter&, const Value& self, const Arguments& given) {
  const Part part = PartOf(self, given);
  return CharacterIndex(
      part, part.text.rfind(TextArgument(given, 0, "sub", "rfind")));
}
Value IndexOf(Interpreter& interpreter, const Value& self,
              const Arguments& given) {
  if (self.is_string()) {
    Value found = Find(interpreter, self, given);
    if (found.integer() < 0) throw Error("index: not found");
    return found;
  }
  const std::vector<Value>& items = self.sequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(items[i], given.Get(0, "value", Value()))) {
      return static_cast<int64_t>(i);
    }
  }
  throw Error("index: not found");
}
Value Count(Interpreter&, const Value& self, const Arguments& given) {
  if (!self.is_string()) {
    const std::vector<Value>& items = self.sequence()->items;
    return static_cast<int64_t>(
        std::count_if(items.begin(), items.end(), [&](const Value& item) {
          return Equal(item, given.Get(0, "value", Value()));
        }));
  }
  const std::string& sub = TextArgument(given, 0, "sub", "count");
  const absl::string_view text = PartOf(self, given).text;
  if (sub.empty()) return CharacterCount(text) + 1;
  int64_t count = 0;
  for (size_t at = text.find(sub); at != absl::string_view::npos;
       at = text.find(sub, at + sub.size())) {
    ++count;
  }
  return count;
}

Value Join(Interpreter& interpreter, const Value& self,
           const Arguments& given) {
  std::string text;
  bool first = true;
  for (const Value& item : Iterate(given.Get(0, "iterable", Value()))) {
    if (!item.is_string()) {
      throw Error(absl::StrCat("join wants texts, not a ", item.TypeName()));
    }
    if (!first) text += self.string();
    first = false;
    interpreter.SpendText(item.string().size() + self.string().size());
    text += item.string();
  }
  return text;
}

template <bool (*is)(uint32_t)>
Value AllAre(Interpreter&, const Value& self, const Arguments&) {
  const std::string& text = self.string();
  if (text.empty()) return false;
  for (size_t at = 0; at < text.size();) {
    if (!is(NextCharacter(text, &at))) return false;
  }
  return true;
}
utf8proc_category_t CategoryOf(uint32_t c) {
  return utf8proc_category(static_cast<int32_t>(c));
}
bool IsDecimal(uint32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_ND; }
bool IsAlpha(uint32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsAlphaNumeric(uint32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return IsAlpha(c) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}
template <bool upper>
Value HasCase(Interpreter&, const Value& self, const Arguments&) {
  const std::string& text = self.string();
  return text == (upper ? Upper(text) : Lower(text)) &&
         text != (upper ? Lower(text) : Upper(text));
}

Value RemovePrefix(Interpreter&, const Value& self, const Arguments& given) {
  const std::string& prefix = TextArgument(given, 0, "prefix", "removeprefix");
  return absl::StartsWith(self.string(), prefix)
             ? self.string().substr(prefix.size())
             : self.string();
}
Value RemoveSuffix(Interpreter&, const Value& self, const Arguments& given) {
  const std::string& suffix = TextArgument(given, 0, "suffix", "removesuffix");
  return absl::EndsWith(self.string(), suffix)
             ? self.string().substr(0, self.string().size() - suffix.size())
             : self.string();
}

template <bool last>
Value Partition(Interpreter&, const Value& self, const Arguments& given) {
  const std::string& sign = TextArgument(given, 0, "sep", "partition");
  if (sign.empty()) throw Error("partition wants a separator");
  const std::string& text = self.string();
  const size_t found = last ? text.rfind(sign) : text.find(sign);
  if (found == std::string::npos) {
    return last ? Value::Tuple({"", "", text}) : Value::Tuple({text, "", ""});
  }
  return Value::Tuple(
      {text.substr(0, found), sign, text.substr(found + sign.size())});
}

std::string FillOf(const Arguments& given) {
  const Value fill = given.Get(1, "fillchar", " ");
  if (fill.is_string() && CharacterCount(fill.string()) == 1) {
    return fill.string();
  }
  throw Error("the fill is to be one character");
}

template <bool left>
Value Justify(Interpreter& interpreter, const Value& self,
              const Arguments& given) {
  const int64_t pad =
      std::max<int64_t>(0, NumberArgument(given, 0, "width", 0)) -
      CharacterCount(self.string());
  if (pad <= 0) return self;
  interpreter.SpendText(static_cast<size_t>(pad));
  std::string fill;
  const std::string with = FillOf(given);
  for (int64_t i = 0; i < pad; ++i) fill += with;
  return left ? self.string() + fill : fill + self.string();
}
Value Center(Interpreter&, const Value& self, const Arguments& given) {
  return Centered(self.string(), NumberArgument(given, 0, "width", 0),
                  FillOf(given));
}
Value ZeroFill(Interpreter& interpreter, const Value& self,
               const Arguments& given) {
  const int64_t pad =
      std::max<int64_t>(0, NumberArgument(given, 0, "width", 0)) -
      CharacterCount(self.string());
  if (pad <= 0) return self;
  interpreter.SpendText(static_cast<size_t>(pad));
  const bool sign = absl::StartsWith(self.string(), "-") ||
                    absl::StartsWith(self.string(), "+");
  return absl::StrCat(self.string().substr(0, sign), std::string(pad, '0'),
                      self.string().substr(sign));
}

Value FormatOf(Interpreter& interpreter, const Value& self,
               const Arguments& given) {
  return Format(interpreter, self.string(), given);
}
Value FormatMap(Interpreter& interpreter, const Value& self,
                const Arguments& given) {
  const Value names = given.Get(0, "mapping", Value());
  if (!names.is_dict()) throw Error("format_map wants a dict");
  Arguments named;
  for (const auto& [key, value] : names.dict()->items) {
    if (key.is_string()) named.named.emplace_back(key.string(), value);
  }
  return Format(interpreter, self.string(), named);
}

// ---- Dicts.

Value Items(Interpreter& interpreter, const Value& self, const Arguments&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->items) {
    items.push_back(Value::Tuple({key, value}));
  }
  interpreter.Spend(static_cast<int64_t>(items.size()));
  return Value::List(std::move(items));
}
Value Keys(Interpreter&, const Value& self, const Arguments&) {
  return Value::List(Iterate(self));
}
Value Values(Interpreter& interpreter, const Value& self, const Arguments&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->items) items.push_back(value);
  interpreter.Spend(static_cast<int64_t>(items.size()));
  return Value::List(std::move(items));
}
Value Get(Interpreter&, const Value& self, const Arguments& given) {
  const Value key = given.Get(0, "key", Value());
  CheckHashable(key);
  const Value* const found = self.dict()->Find(key);
  return found != nullptr ? *found : given.Get(1, "default", Value());
}
Value Copy(Interpreter&, const Value& self, const Arguments&) { return self; }

struct Method {
  const char* name;
  Function function;  // null: it changes the value, which templates can't
  Signature signature = {};
};

constexpr Method kTextMethods[] = {
    {"strip", &Strip<true, true>, {"chars/", 0}},
    {"lstrip", &Strip<true, false>, {"chars/", 0}},
    {"rstrip", &Strip<false, true>, {"chars/", 0}},
    {"split", &Split, {"sep,maxsplit", 0}},
    {"rsplit", &RightSplit, {"sep,maxsplit", 0}},
    {"splitlines", &SplitLines, {"keepends", 0}},
    {"startswith", &StartsWith, {"prefix,start,end/", 1}},
    {"endswith", &EndsWith, {"prefix,start,end/", 1}},
    {"replace", &Replace, {"old,new,count/", 2}},
    {"upper", &UpperOf},
    {"lower", &LowerOf},
    {"casefold", &LowerOf},
    {"title", &TitleOf},
    {"capitalize", &CapitalizeOf},
    {"find", &Find, {"sub,start,end/", 1}},
    {"rfind", &RightFind, {"sub,start,end/", 1}},
    {"index", &IndexOf, {"sub,start,end/", 1}},
    {"count", &Count, {"sub,start,end/", 1}},
    {"join", &Join, {"iterable/", 1}},
    {"isdigit", &AllAre<IsDecimal>},
    {"isdecimal", &AllAre<IsDecimal>},
    {"isnumeric", &AllAre<IsDecimal>},
    {"isalpha", &AllAre<IsAlpha>},
    {"isalnum", &AllAre<IsAlphaNumeric>},
    {"isspace", &AllAre<IsSpace>},
    {"isupper", &HasCase<true>},
    {"islower", &HasCase<false>},
    {"removeprefix", &RemovePrefix, {"prefix/", 1}},
    {"removesuffix", &RemoveSuffix, {"suffix/", 1}},
    {"partition", &Partition<false>, {"sep/", 1}},
    {"rpartition", &Partition<true>, {"sep/", 1}},
    {"ljust", &Justify<true>, {"width,fillchar/", 1}},
    {"rjust", &Justify<false>, {"width,fillchar/", 1}},
    {"center", &Center, {"width,fillchar/", 1}},
    {"zfill", &ZeroFill, {"width/", 1}},
    {"format", &FormatOf, {"*"}},
    {"format_map", &FormatMap, {"mapping/", 1}},
};
constexpr Method kListMethods[] = {
    {"index", &IndexOf, {"value,start,stop/", 1}},
    {"count", &Count, {"value/", 1}},
    {"copy", &Copy},
    {"append", nullptr},
    {"extend", nullptr},
    {"insert", nullptr},
    {"pop", nullptr},
    {"remove", nullptr},
    {"clear", nullptr},
    {"reverse", nullptr},
    {"sort", nullptr},
};
constexpr Method kDictMethods[] = {
    {"items", &Items},   {"keys", &Keys},
    {"values", &Values}, {"get", &Get, {"key,default/", 1}},
    {"copy", &Copy},     {"update", nullptr},
    {"pop", nullptr},    {"popitem", nullptr},
    {"clear", nullptr},  {"setdefault", nullptr},
};

template <size_t n>
absl::optional<Value> Among(const Method (&methods)[n], const Value& of,
                            absl::string_view name) {
  for (const Method& method : methods) {
    if (name == method.name && method.function == nullptr) {
      return Value(
          Undefined{absl::StrCat("templates can't change a ", of.TypeName())});
    }
    if (name == method.name) {
      return MakeFunction(method.function, of, method.name, method.signature);
    }
  }
  return absl::nullopt;
}

}  // namespace

absl::optional<Value> MethodOf(const Value& of, absl::string_view name) {
  if (of.is_string()) return Among(kTextMethods, of, name);
  if (of.is_sequence()) return Among(kListMethods, of, name);
  if (of.is_dict()) return Among(kDictMethods, of, name);
  return absl::nullopt;
}

}  // namespace capstan::jinja
