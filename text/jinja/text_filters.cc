// SPDX-License-Identifier: Apache-2.0
//
// jinja2's filters of texts (jinja2/filters.py).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {
namespace {

// JSON with characters beyond ASCII as \\uXXXX, in pairs beyond 16 bits.
std::string EscapedAscii(absl::string_view json) {
  std::string out;
  for (size_t at = 0; at < json.size();) {
    const uint32_t c = tokenizer::NextCharacter(json, &at);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&out, "\\u%04x\\u%04x",
                            0xd800 + ((c - 0x10000) >> 10),
                            0xdc00 + ((c - 0x10000) & 0x3ff));
    }
  }
  return out;
}

}  // namespace

Value UpperFilter(Interpreter&, const Value& of, const Arguments&) {
  return Upper(ToText(of));
}
Value LowerFilter(Interpreter&, const Value& of, const Arguments&) {
  return Lower(ToText(of));
}
Value TitleFilter(Interpreter&, const Value& of, const Arguments&) {
  return Title(ToText(of), /*python=*/false);
}
Value CapitalizeFilter(Interpreter&, const Value& of, const Arguments&) {
  return Capitalized(ToText(of));
}
Value TrimFilter(Interpreter&, const Value& of, const Arguments& given) {
  const Value characters = given.Get(0, "chars", Value());
  const std::string text = ToText(of);
  if (characters.is_none()) return Stripped(text, nullptr, true, true);
  if (!characters.is_string()) throw Error("trim's characters are a text");
  const std::string set = ToText(characters);
  return Stripped(text, &set, true, true);
}
Value StringFilter(Interpreter&, const Value& of, const Arguments&) {
  return ToText(of);
}
Value ReplaceFilter(Interpreter& interpreter, const Value& of,
                    const Arguments& given) {
  const std::string text = ToText(of);
  const std::string old = ToText(*given.Find(0, "old"));
  const std::string with = ToText(*given.Find(1, "new"));
  if (with.size() > old.size()) {
    interpreter.SpendText((text.size() / std::max<size_t>(1, old.size()) + 1) *
                          with.size());
  }
  const Value count = given.Get(2, "count", Value());
  return Replaced(text, old, with,
                  count.is_none() ? -1 : IntegerOf(count, "count"));
}
Value EscapeFilter(Interpreter&, const Value& of, const Arguments&) {
  return Value::Markup(Escaped(of));
}
Value CenterFilter(Interpreter&, const Value& of, const Arguments& given) {
  return Centered(ToText(of),
                  IntegerOf(given.Get(0, "width", 80), "center's width"));
}
Value FormatFilter(Interpreter&, const Value& of, const Arguments& given) {
  Dict names;
  for (const auto& [name, value] : given.named) names.Set(name, value);
  if (!given.positional.empty() && !given.named.empty()) {
    throw Error("format takes arguments by place or by name, not both");
  }
  return Percent(ToText(of), given.positional,
                 given.named.empty() ? nullptr : &names);
}
Value WordCountFilter(Interpreter&, const Value& of, const Arguments&) {
  int64_t words = 0;
  bool inside = false;
  for (const char c : ToText(of)) {
    const bool word = absl::ascii_isalnum(c) || c == '_' ||
                      static_cast<unsigned char>(c) >= 0x80;
    words += word && !inside;
    inside = word;
  }
  return words;
}

Value IndentFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given) {
  const Value width = given.Get(0, "width", 4);
  const bool first = given.Get(1, "first", false).Truth();
  const bool blank = given.Get(2, "blank", false).Truth();
  std::string space;
  if (width.is_string()) {
    space = width.string();
  } else {
    const int64_t columns = IntegerOf(width, "indent's width");
    if (columns > 1000) throw LimitError("indent's width exceeds 1,000");
    space.assign(static_cast<size_t>(std::max<int64_t>(0, columns)), ' ');
  }
  if (!of.is_string()) throw Error("indent wants a text");
  const std::string text = ToText(of);
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  interpreter.SpendText(text.size() + lines.size() * space.size());
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if ((i == 0 && !first) || (i > 0 && lines[i].empty() && !blank)) {
      absl::StrAppend(&out, lines[i]);
    } else {
      absl::StrAppend(&out, space, lines[i]);
    }
  }
  return out;
}

Value TruncateFilter(Interpreter&, const Value& of, const Arguments& given) {
  const int64_t length = IntegerOf(given.Get(0, "length", 255), "length");
  const bool kill_words = given.Get(1, "killwords", false).Truth();
  const std::string end = ToText(given.Get(2, "end", "..."));
  const Value leeway_or_none = given.Get(3, "leeway", Value());
  const int64_t leeway =
      leeway_or_none.is_none() ? 5 : IntegerOf(leeway_or_none, "leeway");
  Length(of);  // an error if it has none
  const std::string text = ToText(of);
  const std::vector<std::string> characters = Characters(text);
  const auto count = static_cast<int64_t>(characters.size());
  // Where jinja2 asserts.
  if (length < CharacterCount(end) || leeway < 0) {
    throw Error("truncate's length is less than that of its end");
  }
  if (count - leeway <= length) return text;
  const int64_t keep = std::min(length - CharacterCount(end), count);
  std::string kept;
  for (int64_t i = 0; i < keep; ++i) kept += characters[i];
  if (!kill_words) kept = kept.substr(0, kept.rfind(' '));
  return kept + end;
}

Value UrlEncodeFilter(Interpreter& interpreter, const Value& of,
                      const Arguments&) {
  if (of.is_sequence() || of.is_dict()) {
    throw Error("urlencode wants a text here, not several values");
  }
  const std::string text = ToText(of);
  interpreter.SpendText(3 * text.size());
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || absl::StrContains("-_.~/", c)) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value ToJsonFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given) {
  // transformers': tojson(x, ensure_ascii=False, indent=None, separators=None,
  // sort_keys=False).
  const Value indent = given.Get(1, "indent", Value());
  const Value separators = given.Get(2, "separators", Value());
  std::string item = indent.is_none() ? ", " : ",";
  std::string key = ": ";
  if (!separators.is_none()) {
    const std::vector<Value> both = Iterate(separators);
    if (both.size() != 2) throw Error("tojson's separators are two texts");
    item = ToText(both[0]);
    key = ToText(both[1]);
  }
  const int64_t columns =
      indent.is_none() ? -1 : IntegerOf(indent, "tojson's indent");
  if (columns > 100) throw LimitError("tojson's indent exceeds 100");
  std::string text =
      ToJson(of, static_cast<int>(columns),
             given.Get(3, "sort_keys", false).Truth(), item, key);
  interpreter.SpendText(text.size());
  return given.Get(0, "ensure_ascii", false).Truth() ? EscapedAscii(text)
                                                     : text;
}

}  // namespace capstan::jinja
