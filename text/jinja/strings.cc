// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/strings.h"

#include <utf8proc.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/jinja/interpreter.h"

namespace capstan::jinja {
namespace {

using tokenizer::AppendCharacter;
using tokenizer::NextCharacter;

void AppendUpper(uint32_t c, std::string* text) {
  if (c == 0xdf) {  // the one common letter whose upper case is two
    *text += "SS";
  } else {
    AppendCharacter(utf8proc_toupper(static_cast<int32_t>(c)), text);
  }
}
void AppendLower(uint32_t c, std::string* text) {
  AppendCharacter(utf8proc_tolower(static_cast<int32_t>(c)), text);
}

// Each character in upper case where begins(the one before it, 0 if none).
template <typename Begins>
std::string Cased(absl::string_view text, const Begins& begins) {
  std::string out;
  uint32_t before = 0;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = NextCharacter(text, &at);
    (begins(before) ? AppendUpper : AppendLower)(c, &out);
    before = c;
  }
  return out;
}

}  // namespace

std::string ValidText(const std::string& text) {
  if (tokenizer::IsUtf8(text)) return text;
  std::string valid;
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t c = -1;
    const utf8proc_ssize_t bytes = utf8proc_iterate(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
        static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    AppendCharacter(bytes > 0 ? static_cast<uint32_t>(c) : 0xfffd, &valid);
    at += bytes > 0 ? static_cast<size_t>(bytes) : 1;
  }
  return valid;
}

std::vector<std::string> Characters(absl::string_view text) {
  std::vector<std::string> characters;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    NextCharacter(text, &at);
    characters.emplace_back(text.substr(begin, at - begin));
  }
  return characters;
}

int64_t CharacterCount(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return !tokenizer::IsContinuation(c); });
}

bool IsLetter(uint32_t c) {
  const utf8proc_category_t category =
      utf8proc_category(static_cast<int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

std::string Upper(absl::string_view text) {
  return Cased(text, [](uint32_t) { return true; });
}
std::string Lower(absl::string_view text) {
  return Cased(text, [](uint32_t) { return false; });
}
std::string Capitalized(absl::string_view text) {
  return Cased(text, [](uint32_t before) { return before == 0; });
}
std::string Title(absl::string_view text, bool python) {
  return Cased(text, [python](uint32_t before) {
    if (python) return !IsLetter(before);
    return before == 0 || IsSpace(before) ||
           (before < 0x80 && absl::StrContains("-({[<", char(before)));
  });
}

absl::string_view Stripped(absl::string_view text, const Value* set, bool left,
                           bool right) {
  const auto goes = [set](uint32_t c) {
    if (set == nullptr) return IsSpace(c);
    for (size_t at = 0; at < set->string().size();) {
      if (NextCharacter(set->string(), &at) == c) return true;
    }
    return false;
  };
  return tokenizer::StripCharacters(text, goes, left, right);
}

std::string Replaced(Interpreter& interpreter, absl::string_view text,
                     absl::string_view old, absl::string_view with,
                     int64_t most) {
  // Each occurrence may become all of `with`.
  interpreter.SpendText(text.size());
  if (with.size() > old.size()) {
    interpreter.SpendText((text.size() / std::max<size_t>(1, old.size()) + 1) *
                          with.size());
  }
  std::string out;
  size_t at = 0;
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    const size_t found = text.find(old, at);
    if (found == absl::string_view::npos) break;
    absl::StrAppend(&out, text.substr(at, found - at), with);
    at = found + old.size();
    if (!old.empty()) continue;
    // Python puts it around each character.
    if (at == text.size()) return out;
    const size_t begin = at;
    NextCharacter(text, &at);
    absl::StrAppend(&out, text.substr(begin, at - begin));
  }
  absl::StrAppend(&out, text.substr(at));
  return out;
}

}  // namespace capstan::jinja
