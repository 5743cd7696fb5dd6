// SPDX-License-Identifier: Apache-2.0
//
// Python's functions of text that filters and methods share.
#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "text/jinja/interpreter.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {
namespace {

using tokenizer::AppendCharacter;
using tokenizer::NextCharacter;

template <typename Map>
std::string Mapped(absl::string_view text, const Map& map) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = NextCharacter(text, &at);
    // The one common letter whose upper case is two.
    if (c == 0xdf && map('a') == 'A') {
      out += "SS";
    } else {
      AppendCharacter(static_cast<uint32_t>(map(c)), &out);
    }
  }
  return out;
}

uint32_t ToUpper(uint32_t c) {
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<int32_t>(c)));
}
uint32_t ToLower(uint32_t c) {
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(c)));
}

bool IsLetter(uint32_t c) {
  const utf8proc_category_t category =
      utf8proc_category(static_cast<int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

}  // namespace

std::string Upper(absl::string_view text) { return Mapped(text, ToUpper); }
std::string Lower(absl::string_view text) { return Mapped(text, ToLower); }

// jinja2's filter begins words after spaces, hyphens and brackets, Python's
// method after each character that isn't a letter.
std::string Title(absl::string_view text, bool python) {
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = NextCharacter(text, &at);
    AppendCharacter(begins ? ToUpper(c) : ToLower(c), &out);
    begins = python ? !IsLetter(c)
                    : IsSpace(c) ||
                          (c < 0x80 && absl::StrContains("-({[<", char(c)));
  }
  return out;
}

std::string Capitalized(absl::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool first = at == 0;
    const uint32_t c = NextCharacter(text, &at);
    AppendCharacter(first ? ToUpper(c) : ToLower(c), &out);
  }
  return out;
}

std::string Stripped(absl::string_view text, const std::string* characters,
                     bool begin, bool end) {
  const auto goes = [&](uint32_t c) {
    if (characters == nullptr) return IsSpace(c);
    for (size_t at = 0; at < characters->size();) {
      if (NextCharacter(*characters, &at) == c) return true;
    }
    return false;
  };
  size_t first = text.size();
  size_t last = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (goes(NextCharacter(text, &at))) continue;
    first = std::min(first, here);
    last = at;
  }
  if (!begin) first = 0;
  if (!end) last = text.size();
  return first >= last ? std::string()
                       : std::string(text.substr(first, last - first));
}

std::string Replaced(absl::string_view text, absl::string_view old,
                     absl::string_view with, int64_t most) {
  std::string out;
  if (old.empty()) {
    // Python puts it around each character.
    int64_t done = 0;
    for (size_t at = 0; at < text.size();) {
      if (most < 0 || done++ < most) absl::StrAppend(&out, with);
      const size_t here = at;
      NextCharacter(text, &at);
      absl::StrAppend(&out, text.substr(here, at - here));
    }
    if (most < 0 || done < most) absl::StrAppend(&out, with);
    return out;
  }
  size_t at = 0;
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    const size_t found = text.find(old, at);
    if (found == absl::string_view::npos) break;
    absl::StrAppend(&out, text.substr(at, found - at), with);
    at = found + old.size();
  }
  absl::StrAppend(&out, text.substr(at));
  return out;
}

std::string Centered(absl::string_view text, int64_t width) {
  const int64_t pad = std::max<int64_t>(0, width) - CharacterCount(text);
  if (pad <= 0) return std::string(text);
  if (pad > 100000) throw LimitError("a text is centred in too wide a field");
  // CPython's str.center.
  const int64_t left = pad / 2 + (pad & width & 1);
  return absl::StrCat(std::string(left, ' '), text,
                      std::string(pad - left, ' '));
}

std::string Percent(const std::string& text, const std::vector<Value>& values,
                    const Dict* names) {
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      out += text[at];
      continue;
    }
    if (++at >= text.size()) throw Error("a format ends with %");
    if (text[at] == '%') {
      out += '%';
      continue;
    }
    Value value;
    if (text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == std::string::npos || names == nullptr) {
        throw Error("a format's %(name) wants a dict");
      }
      const Value* const found =
          names->Find(absl::string_view(text).substr(at + 1, close - at - 1));
      if (found == nullptr) throw Error("a format's name isn't in the dict");
      value = *found;
      at = close + 1;
    } else {
      if (used >= values.size()) throw Error("a format wants more arguments");
      value = values[used++];
    }
    const size_t spec = at;
    while (at < text.size() && absl::StrContains("-+ #0123456789.", text[at])) {
      ++at;
    }
    if (at >= text.size()) throw Error("a format ends in the midst");
    const std::string flags = text.substr(spec, at - spec);
    if (flags.size() > 6) throw Error("a format has too long a width");
    const char kind = text[at];
    if (kind == 's' || kind == 'r') {
      const auto format =
          absl::ParsedFormat<'s'>::New(absl::StrCat("%", flags, "s"));
      if (format == nullptr) throw Error("a format isn't known");
      out +=
          absl::StrFormat(*format, kind == 's' ? ToText(value) : Repr(value));
    } else if (absl::StrContains("dix", kind) && value.is_number()) {
      const auto format =
          absl::ParsedFormat<'d'>::New(absl::StrCat("%", flags, "d"));
      if (format == nullptr || kind == 'x') throw Error("a format isn't known");
      out += absl::StrFormat(*format, value.is_float()
                                          ? static_cast<int64_t>(value.number())
                                          : value.integer());
    } else if (absl::StrContains("feg", kind) && value.is_number()) {
      const auto format =
          absl::ParsedFormat<absl::FormatConversionCharSet::kFloating>::New(
              absl::StrCat("%", flags, std::string(1, kind)));
      if (format == nullptr) throw Error("a format isn't known");
      out += absl::StrFormat(*format, value.number());
    } else {
      throw Error(absl::StrCat("a format's %", std::string(1, kind),
                               " doesn't fit a ", value.TypeName()));
    }
  }
  if (names == nullptr && used < values.size()) {
    throw Error("a format wants fewer arguments");
  }
  return out;
}

}  // namespace capstan::jinja
