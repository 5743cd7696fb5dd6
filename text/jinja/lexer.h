// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_JINJA_LEXER_H_
#define CAPSTAN_TEXT_JINJA_LEXER_H_

#include <string>
#include <vector>

#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace capstan::jinja {

enum class TokenKind {
  kText,         // outside of tags; never empty
  kOutputBegin,  // {{
  kOutputEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kNumber,  // value
  kString,  // value
  kSign,    // operators and brackets
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;
  Value value;

  bool IsName(const char* name) const {
    return kind == TokenKind::kName && text == name;
  }
  bool IsSign(const char* sign) const {
    return kind == TokenKind::kSign && text == sign;
  }
};

// The template's tokens, the last of which is kEnd, as jinja2's lexer.py reads
// them. With WhiteSpace::kTrimmed the newline after a block's or comment's tag
// goes, and so do spaces and tabs between a line's begin and such a tag, but
// for {%+; {%- and -%} take all white space in any case. Throws Error.
std::vector<Token> Tokenize(const std::string& source, WhiteSpace white_space);

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_LEXER_H_
