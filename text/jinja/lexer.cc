// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/lexer.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {
namespace {

using tokenizer::AppendCharacter;
using tokenizer::NextCharacter;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameByte(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

// Without the white space at its end.
absl::string_view RightStripped(absl::string_view text) {
  size_t keep = 0;
  for (size_t at = 0; at < text.size();) {
    if (!IsSpace(NextCharacter(text, &at))) keep = at;
  }
  return text.substr(0, keep);
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Lexer {
 public:
  explicit Lexer(const std::string& source)
      : source_(absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}})) {
    absl::ConsumeSuffix(&rest_of_source_, "\n");
  }

  std::vector<Token> Run() {
    while (at_ < text_().size()) ReadText();
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::string_view text_() const { return rest_of_source_; }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_().size() ? text_()[at_ + ahead] : '\0';
  }
  bool Next(absl::string_view sign) const {
    return absl::StartsWith(text_().substr(at_), sign);
  }
  [[noreturn]] void Fail(absl::string_view problem) const {
    throw Error(absl::StrCat("line ", line_, ": ", problem));
  }
  void Add(TokenKind kind, absl::string_view text, Value value = {}) {
    tokens_.push_back({kind, line_, std::string(text), std::move(value)});
  }
  void Advance(size_t bytes) {
    const absl::string_view passed = text_().substr(at_, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += passed.size();
    line_starts_ = !passed.empty() && passed.back() == '\n';
  }
  void SkipSpace() {
    size_t end = at_;
    for (size_t at = at_; at < text_().size();) {
      if (!IsSpace(NextCharacter(text_(), &at))) break;
      end = at;
    }
    if (end > at_) Advance(end - at_);
  }

  void ReadText();
  // `data` stands before a tag, whose sign ('-', '+' or 0) is `sign`.
  void AddText(absl::string_view data, char sign, bool output);
  void ReadComment();
  void ReadTag(bool output);
  // Whether a raw block begins here, which is then read.
  bool ReadRaw();
  // Passes the end of a tag, with its sign and what it trims.
  void PassEnd(const char* end, bool trims_newline);
  void ReadToken();
  void ReadNumber();
  void ReadString();
  bool ReadSign();
  void AppendEscape(absl::string_view text, size_t* at, std::string* out) const;

  const std::string source_;
  absl::string_view rest_of_source_ = source_;
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
  } else if (sign != '+' && !output) {
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
    tag = text_().find('{', tag);
  } while (tag != absl::string_view::npos && tag + 1 < text_().size() &&
           !absl::StrContains("{%#", text_()[tag + 1]) && ++tag != 0);
  if (tag == absl::string_view::npos || tag + 1 >= text_().size()) {
    Add(TokenKind::kText, text_().substr(at_));
    Advance(text_().size() - at_);
    return;
  }
  const char kind = text_()[tag + 1];
  const char sign = tag + 2 < text_().size() ? text_()[tag + 2] : '\0';
  const bool signed_ = sign == '-' || sign == '+';
  AddText(text_().substr(at_, tag - at_), signed_ ? sign : '\0', kind == '{');
  Advance(tag - at_);
  if (kind == '%' && ReadRaw()) return;
  Advance(2 + (signed_ ? 1 : 0));
  if (kind == '#') return ReadComment();
  ReadTag(kind == '{');
}

void Lexer::ReadComment() {
  const size_t end = text_().find("#}", at_);
  if (end == absl::string_view::npos) Fail("a comment has no end, #}");
  const char sign = end > at_ ? text_()[end - 1] : '\0';
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
  } else if (sign != '+' && trims_newline && Peek() == '\n') {
    Advance(1);
  }
}

bool Lexer::ReadRaw() {
  size_t at = at_ + 2;
  const auto skip = [&] {
    while (at < text_().size() && absl::StrContains(" \t\n", text_()[at])) ++at;
  };
  if (at < text_().size() && absl::StrContains("-+", text_()[at])) ++at;
  skip();
  if (!absl::StartsWith(text_().substr(at), "raw")) return false;
  at += 3;
  skip();
  const bool strips = at < text_().size() && text_()[at] == '-';
  if (strips) ++at;
  if (!absl::StartsWith(text_().substr(at), "%}")) return false;
  Advance(at + 2 - at_);
  if (strips) SkipSpace();
  // Its end: {%[-+] endraw [-+]%}.
  for (size_t open = at_;; ++open) {
    open = text_().find("{%", open);
    if (open == absl::string_view::npos) Fail("a raw block has no endraw");
    at = open + 2;
    const char sign = at < text_().size() ? text_()[at] : '\0';
    if (sign == '-' || sign == '+') ++at;
    skip();
    if (!absl::StartsWith(text_().substr(at), "endraw")) continue;
    at += 6;
    skip();
    const absl::string_view end = text_().substr(at);
    if (!absl::StartsWith(end, "%}") && !absl::StartsWith(end, "-%}") &&
        !absl::StartsWith(end, "+%}")) {
      continue;
    }
    AddText(text_().substr(at_, open - at_),
            sign == '-' || sign == '+' ? sign : '\0', false);
    Advance(at - at_);
    PassEnd("%}", /*trims_newline=*/true);
    return true;
  }
}

void Lexer::ReadTag(bool output) {
  const char* const end = output ? "}}" : "%}";
  const int line = line_;
  Add(output ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
  brackets_.clear();
  while (true) {
    SkipSpace();
    if (at_ >= text_().size()) {
      line_ = line;
      Fail(absl::StrCat("a tag has no end, ", end));
    }
    if (brackets_.empty()) {
      const bool sign = Peek() == '-' || (Peek() == '+' && !output);
      if (absl::StartsWith(text_().substr(at_ + (sign ? 1 : 0)), end)) {
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
  if (IsNameByte(c)) {
    size_t end = at_;
    while (end < text_().size() && IsNameByte(text_()[end])) ++end;
    Add(TokenKind::kName, text_().substr(at_, end - at_));
    return Advance(end - at_);
  }
  if (!ReadSign()) {
    size_t at = at_;
    NextCharacter(text_(), &at);
    Fail(absl::StrCat("`", text_().substr(at_, at - at_),
                      "` isn't part of an expression"));
  }
}

void Lexer::ReadNumber() {
  size_t end = at_;
  bool is_float = false;
  const auto digits = [&] {
    while (end < text_().size() &&
           (IsDigit(text_()[end]) ||
            (text_()[end] == '_' && end + 1 < text_().size() &&
             IsDigit(text_()[end + 1])))) {
      ++end;
    }
  };
  digits();
  const auto digit_at = [&](size_t at) {
    return at < text_().size() && IsDigit(text_()[at]);
  };
  // After a dot, digits are an item's number: a.0.1.
  const bool item = !tokens_.empty() && tokens_.back().IsSign(".");
  if (!item && end < text_().size() && text_()[end] == '.' &&
      digit_at(end + 1)) {
    is_float = true;
    ++end;
    digits();
  }
  if (!item && end < text_().size() && (text_()[end] | 32) == 'e') {
    const size_t sign =
        end + 1 < text_().size() && absl::StrContains("+-", text_()[end + 1]);
    if (digit_at(end + 1 + sign)) {
      is_float = true;
      end += 1 + sign;
      digits();
    }
  }
  const std::string text =
      absl::StrReplaceAll(text_().substr(at_, end - at_), {{"_", ""}});
  Value value;
  if (is_float) {
    value = std::strtod(text.c_str(), nullptr);
  } else {
    int64_t number = 0;
    if (!absl::SimpleAtoi(text, &number)) {
      Fail(absl::StrCat(text, " exceeds 64 bits"));
    }
    value = number;
  }
  Add(TokenKind::kNumber, text, std::move(value));
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
  while (end < text_().size() && text_()[end] != quote) {
    end += text_()[end] == '\\' ? 2 : 1;
  }
  if (end >= text_().size()) Fail("a text has no closing quote");
  const absl::string_view inner = text_().substr(at_ + 1, end - at_ - 1);
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

std::vector<Token> Tokenize(const std::string& source) {
  return Lexer(source).Run();
}

}  // namespace capstan::jinja
