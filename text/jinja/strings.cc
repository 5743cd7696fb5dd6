// SPDX-License-Identifier: Apache-2.0
//
// Python's functions of text that filters and methods share.
#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

std::string Centered(absl::string_view text, int64_t width,
                     absl::string_view fill) {
  const int64_t pad = std::max<int64_t>(0, width) - CharacterCount(text);
  if (pad <= 0) return std::string(text);
  if (pad > 100000) throw LimitError("a text is centred in too wide a field");
  // CPython's str.center.
  const int64_t left = pad / 2 + (pad & width & 1);
  std::string out;
  for (int64_t i = 0; i < pad; ++i) {
    if (i == left) out.append(text.data(), text.size());
    out.append(fill.data(), fill.size());
  }
  if (left == pad) out.append(text.data(), text.size());
  return out;
}

}  // namespace capstan::jinja
