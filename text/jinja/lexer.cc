// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/lexer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "text/jinja/strings.h"

namespace capstan::jinja {
namespace {

using tokenizer::AppendCharacter;
using tokenizer::NextCharacter;

// Of an integer, as Python limits them.
constexpr size_t kMostDigits = 4300;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
// What a name begins with, and consists of: Python's identifiers.
bool IsNameBegin(uint32_t c) {
  return c == '_' || IsLetter(c) ||
         utf8proc_category(static_cast<int32_t>(c)) == UTF8PROC_CATEGORY_NL;
}
bool IsNamePart(uint32_t c) {
  switch (utf8proc_category(static_cast<int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return IsNameBegin(c);
  }
}

absl::string_view RightStripped(absl::string_view text) {
  return Stripped(text, nullptr, /*left=*/false, /*right=*/true);
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Lexer {
 public:
  Lexer(const std::string& source, WhiteSpace white_space)
      : source_(absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}})),
        trims_(white_space == WhiteSpace::kTrimmed) {
    if (trims_) absl::ConsumeSuffix(&text_, "\n");
  }

  std::vector<Token> Run() {
    while (at_ < text_.size()) ReadText();
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Next(absl::string_view sign) const {
    return absl::StartsWith(text_.substr(at_), sign);
  }
  [[noreturn]] void Fail(absl::string_view problem) const {
    throw Error(absl::StrCat("line ", line_, ": ", problem));
  }
  void Add(TokenKind kind, absl::string_view text, Value value = {}) {
    tokens_.push_back({kind, line_, std::string(text), std::move(value)});
  }
  void Advance(size_t bytes) {
    const absl::string_view passed = text_.substr(at_, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += passed.size();
    line_starts_ = !passed.empty() && passed.back() == '\n';
  }
  void SkipSpace() {
    const absl::string_view rest = text_.substr(at_);
    const size_t bytes =
        rest.size() - Stripped(rest, nullptr, true, false).size();
    if (bytes > 0) Advance(bytes);
  }

  void ReadText();
  // `data` stands before a tag, whose sign ('-', '+' or 0) is `sign`.
  void AddText(absl::string_view data, char sign, bool output);
  void ReadComment();
  void ReadTag(bool output);
  // Passes the end of a tag, with its sign and what it trims.
  void PassEnd(const char* end, bool trims_newline);
  void ReadToken();
  void ReadNumber();
  // Where digits that begin at `begin` end, which an underscore may part, and
  // precede.
  size_t DigitsEnd(size_t begin, unsigned base, bool underscore) const;
  void ReadString();
  bool ReadSign();
  void AppendEscape(absl::string_view text, size_t* at, std::string* out) const;

  const std::string source_;
  const bool trims_;
  absl::string_view text_ = source_;
  size_t at_ = 0;
  int line_ = 1;
  // What was read last ended with a newline, or nothing was.
  bool line_starts_ = true;
  std::string brackets_;  // open ones
  std::vector<Token> tokens_;
};

void Lexer::AddText(absl::string_view data, char sign, bool output) {
  if (sign == '-') {
    data = RightStripped(data);
  } else if (trims_ && sign != '+' && !output) {
    const size_t newline = data.rfind('\n');
    const size_t begin = newline == absl::string_view::npos ? 0 : newline + 1;
    if (begin > 0 || line_starts_) {
      const absl::string_view line = data.substr(begin);
      if (!line.empty() && RightStripped(line).empty()) {
        data = data.substr(0, begin);
      }
    }
  }
  if (!data.empty()) Add(TokenKind::kText, data);
}

void Lexer::ReadText() {
  size_t tag = at_;
  do {
    tag = text_.find('{', tag);
  } while (tag != absl::string_view::npos && tag + 1 < text_.size() &&
           !absl::StrContains("{%#", text_[tag + 1]) && ++tag != 0);
  if (tag == absl::string_view::npos || tag + 1 >= text_.size()) {
    Add(TokenKind::kText, text_.substr(at_));
    Advance(text_.size() - at_);
    return;
  }
  const char kind = text_[tag + 1];
  const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
  const bool signed_ = sign == '-' || sign == '+';
  AddText(text_.substr(at_, tag - at_), signed_ ? sign : '\0', kind == '{');
  Advance(tag - at_);
  Advance(2 + (signed_ ? 1 : 0));
  if (kind == '#') return ReadComment();
  ReadTag(kind == '{');
}

void Lexer::ReadComment() {
  const size_t end = text_.find("#}", at_);
  if (end == absl::string_view::npos) Fail("a comment has no end, #}");
  const char sign = end > at_ ? text_[end - 1] : '\0';
  const size_t signs = sign == '-' || sign == '+' ? 1 : 0;
  Advance(end - signs - at_);
  PassEnd("#}", /*trims_newline=*/true);
}

void Lexer::PassEnd(const char* end, bool trims_newline) {
  const char sign = Peek();
  const bool signed_ = sign == '-' || sign == '+';
  Advance((signed_ ? 1 : 0) + std::char_traits<char>::length(end));
  if (sign == '-') {
    SkipSpace();
  } else if (trims_ && sign != '+' && trims_newline && Peek() == '\n') {
    Advance(1);
  }
}

void Lexer::ReadTag(bool output) {
  const char* const end = output ? "}}" : "%}";
  const int line = line_;
  Add(output ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
  brackets_.clear();
  while (true) {
    SkipSpace();
    if (at_ >= text_.size()) {
      line_ = line;
      Fail(absl::StrCat("a tag has no end, ", end));
    }
    if (brackets_.empty()) {
      const bool sign = Peek() == '-' || (Peek() == '+' && !output);
      if (absl::StartsWith(text_.substr(at_ + (sign ? 1 : 0)), end)) {
        Add(output ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
        return PassEnd(end, !output);
      }
    }
    ReadToken();
  }
}

void Lexer::ReadToken() {
  const char c = Peek();
  if (IsDigit(c)) return ReadNumber();
  if (c == '\'' || c == '"') return ReadString();
  size_t end = at_;
  if (IsNameBegin(NextCharacter(text_, &end))) {
    for (size_t next = end; next < text_.size(); end = next) {
      if (!IsNamePart(NextCharacter(text_, &next))) break;
    }
    Add(TokenKind::kName, text_.substr(at_, end - at_));
    return Advance(end - at_);
  }
  if (!ReadSign()) {
    size_t at = at_;
    NextCharacter(text_, &at);
    Fail(absl::StrCat("`", text_.substr(at_, at - at_),
                      "` isn't part of an expression"));
  }
}

// The value of digits in a base up to 16, of any size.
Value IntegerIn(unsigned base, absl::string_view digits) {
  std::string decimal = "0";
  for (const char c : digits) {
    if (c == '_') continue;
    auto carry = static_cast<unsigned>(HexDigit(c));
    for (auto place = decimal.rbegin(); place != decimal.rend(); ++place) {
      carry += static_cast<unsigned>(*place - '0') * base;
      *place = static_cast<char>('0' + carry % 10);
      carry /= 10;
    }
    for (; carry > 0; carry /= 10) {
      decimal.insert(decimal.begin(), static_cast<char>('0' + carry % 10));
    }
  }
  return IntegerOfText(decimal);
}

size_t Lexer::DigitsEnd(size_t begin, unsigned base, bool underscore) const {
  const auto is_digit = [&](size_t at) {
    const int digit = at < text_.size() ? HexDigit(text_[at]) : -1;
    return digit >= 0 && digit < static_cast<int>(base);
  };
  size_t end = begin;
  if (!is_digit(end) && !(underscore && end < text_.size() &&
                          text_[end] == '_' && is_digit(end + 1))) {
    return begin;
  }
  while (is_digit(end) ||
         (end < text_.size() && text_[end] == '_' && is_digit(end + 1))) {
    ++end;
  }
  return end;
}

void Lexer::ReadNumber() {
  // After a dot, digits are an item's number: a.0.1.
  const bool item = !tokens_.empty() && tokens_.back().IsSign(".");
  size_t end = DigitsEnd(at_, 10, false);
  bool is_float = false;
  if (!item && end < text_.size() && text_[end] == '.') {
    const size_t behind = DigitsEnd(end + 1, 10, false);
    is_float = behind > end + 1;
    if (is_float) end = behind;
  }
  if (!item && end < text_.size() && (text_[end] | 32) == 'e') {
    const size_t sign =
        end + 1 < text_.size() && absl::StrContains("+-", text_[end + 1]);
    const size_t behind = DigitsEnd(end + 1 + sign, 10, false);
    if (behind > end + 1 + sign) {
      is_float = true;
      end = behind;
    }
  }
  if (is_float) {
    const std::string text =
        absl::StrReplaceAll(text_.substr(at_, end - at_), {{"_", ""}});
    const double number = std::strtod(text.c_str(), nullptr);
    if (std::isinf(number)) Fail(absl::StrCat(text, " is too large"));
    Add(TokenKind::kNumber, text, number);
    return Advance(end - at_);
  }
  unsigned base = 10;
  size_t begin = at_;
  if (Peek() == '0') {
    const char kind = static_cast<char>(Peek(1) | 32);
    base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    if (base != 10) begin += 2;
    end = DigitsEnd(begin, base == 10 ? 1 : base, true);
    if (end == begin) {  // a zero, and what follows
      base = 10;
      begin = at_;
      end = at_ + 1;
    }
  }
  if (end - begin > kMostDigits) Fail("an integer has too many digits");
  Add(TokenKind::kNumber, text_.substr(at_, end - at_),
      IntegerIn(base, text_.substr(begin, end - begin)));
  Advance(end - at_);
}

void Lexer::AppendEscape(absl::string_view text, size_t* at,
                         std::string* out) const {
  const char c = text[(*at)++];
  const auto hex = [&](int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const int digit = *at < text.size() ? HexDigit(text[*at]) : -1;
      if (digit < 0) Fail("an escape in a text lacks digits");
      code = code * 16 + static_cast<uint32_t>(digit);
      ++*at;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      Fail("an escape in a text is no character");
    }
    AppendCharacter(code, out);
  };
  static constexpr char kFrom[] = "ntr\\'\"abfv";
  static constexpr char kTo[] = "\n\t\r\\'\"\a\b\f\v";
  if (const size_t simple = absl::string_view(kFrom).find(c);
      simple != absl::string_view::npos) {
    *out += kTo[simple];
  } else if (c >= '0' && c <= '7') {
    uint32_t code = static_cast<uint32_t>(c - '0');
    for (int i = 0;
         i < 2 && *at < text.size() && text[*at] >= '0' && text[*at] <= '7';
         ++i) {
      code = code * 8 + static_cast<uint32_t>(text[(*at)++] - '0');
    }
    AppendCharacter(code, out);
  } else if (c == 'x') {
    hex(2);
  } else if (c == 'u') {
    hex(4);
  } else if (c == 'U') {
    hex(8);
  } else if (c == 'N') {
    Fail("characters by name, \\N{..}, aren't known");
  } else if (c != '\n') {
    *out += '\\';
    *out += c;
  }
}

void Lexer::ReadString() {
  const char quote = Peek();
  size_t end = at_ + 1;
  while (end < text_.size() && text_[end] != quote) {
    end += text_[end] == '\\' ? 2 : 1;
  }
  if (end >= text_.size()) Fail("a text has no closing quote");
  const absl::string_view inner = text_.substr(at_ + 1, end - at_ - 1);
  std::string value;
  for (size_t at = 0; at < inner.size();) {
    if (inner[at] == '\\') {
      ++at;
      AppendEscape(inner, &at, &value);
    } else {
      value += inner[at++];
    }
  }
  Add(TokenKind::kString, "", std::move(value));
  Advance(end + 1 - at_);
}

bool Lexer::ReadSign() {
  static constexpr const char* kSigns[] = {
      "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
  for (const char* const sign : kSigns) {
    if (!Next(sign)) continue;
    const char c = sign[0];
    if (c == '(' || c == '[' || c == '{') {
      brackets_ += c;
    } else if (c == ')' || c == ']' || c == '}') {
      const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (brackets_.empty() || brackets_.back() != open) {
        Fail(absl::StrCat("`", sign, "` closes nothing"));
      }
      brackets_.pop_back();
    }
    Add(TokenKind::kSign, sign);
    Advance(std::char_traits<char>::length(sign));
    return true;
  }
  return false;
}

}  // namespace

std::vector<Token> Tokenize(const std::string& source, WhiteSpace white_space) {
  return Lexer(source, white_space).Run();
}

}  // namespace capstan::jinja
