// SPDX-License-Identifier: Apache-2.0
//
// Python's functions of text that filters and methods share. Texts are UTF-8.
#ifndef CAPSTAN_TEXT_JINJA_STRINGS_H_
#define CAPSTAN_TEXT_JINJA_STRINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/jinja/value.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {

// With U+FFFD in place of bytes that are no UTF-8.
std::string ValidText(const std::string& text);

std::vector<std::string> Characters(absl::string_view text);
int64_t CharacterCount(absl::string_view text);
// Python's str.isspace.
inline bool IsSpace(uint32_t c) {
  return tokenizer::IsSpace(c) || (c >= 28 && c <= 31);
}
// A general category L..
bool IsLetter(uint32_t c);

std::string Upper(absl::string_view text);
std::string Lower(absl::string_view text);
// jinja2's filter begins words after spaces, hyphens and brackets, Python's
// method after each character that isn't a letter.
std::string Title(absl::string_view text, bool python);
std::string Capitalized(absl::string_view text);
// Without the characters that are in `set` (null: white space) at its ends.
absl::string_view Stripped(absl::string_view text, const Value* set = nullptr,
                           bool left = true, bool right = true);
// The first `most` occurrences are replaced; negative: all. The new text is
// counted.
std::string Replaced(Interpreter& interpreter, absl::string_view text,
                     absl::string_view old, absl::string_view with,
                     int64_t most);

// Python's `text % values`.
std::string Percent(const std::string& text, const std::vector<Value>& values,
                    const Dict* names);
// Python's text.format(..).
std::string Format(Interpreter& interpreter, const std::string& text,
                   const Arguments& given);

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_STRINGS_H_
