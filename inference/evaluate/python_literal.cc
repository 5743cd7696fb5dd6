// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/python_literal.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "text/tokenizer/unicode.h"

namespace capstan::evaluate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 100;

// Each function passes what it reads; false if that is something else.
class Reader {
 public:
  explicit Reader(absl::string_view text) : rest_(text) {}

  absl::optional<Json> Read() {
    Json value;
    if (!Value(&value, 0)) return absl::nullopt;
    Space();
    if (!rest_.empty()) return absl::nullopt;
    return value;
  }

 private:
  // Also line ends and comments: only a bracket or a parenthesis can be open
  // where they are.
  void Space() {
    while (!rest_.empty()) {
      if (absl::ascii_isspace(static_cast<unsigned char>(rest_[0]))) {
        rest_.remove_prefix(1);
      } else if (rest_[0] == '#') {
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
      } else {
        return;
      }
    }
  }
  bool Take(absl::string_view token) {
    Space();
    if (!absl::StartsWith(rest_, token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  bool Value(Json* value, int depth) {
    if (depth > kMostDepth) return false;
    Space();
    if (rest_.empty()) return false;
    if (Take("[")) return List("]", value, depth);
    if (Take("(")) return Parenthesis(value, depth);
    if (Take("{")) return Dict(value, depth);
    if (AtText()) return Texts(value);
    return Word(value);
  }

  bool List(const char* end, Json* value, int depth) {
    *value = Json::array();
    while (!Take(end)) {
      Json item;
      if (!Value(&item, depth + 1)) return false;
      value->push_back(std::move(item));
      if (Take(",")) continue;
      return Take(end);
    }
    return true;
  }

  // A value in parentheses, or a tuple.
  bool Parenthesis(Json* value, int depth) {
    *value = Json::array();
    if (Take(")")) return true;
    Json first;
    if (!Value(&first, depth + 1)) return false;
    if (Take(")")) {
      *value = std::move(first);
      return true;
    }
    if (!Take(",") || !List(")", value, depth)) return false;
    value->insert(value->begin(), std::move(first));
    return true;
  }

  bool Dict(Json* value, int depth) {
    *value = Json::object();
    while (!Take("}")) {
      Json key, item;
      if (!Value(&key, depth + 1) || !Take(":") || !Value(&item, depth + 1)) {
        return false;
      }
      (*value)[key.is_string() ? key.get<std::string>() : key.dump()] =
          std::move(item);
      if (Take(",")) continue;
      return Take("}");
    }
    return true;
  }

  bool AtText() const {
    absl::string_view at = rest_;
    if (!at.empty() && absl::StrContains("rRuU", at[0])) at.remove_prefix(1);
    return !at.empty() && (at[0] == '"' || at[0] == '\'');
  }

  bool Texts(Json* value) {
    std::string text;
    do {
      if (!Text(&text)) return false;
      Space();
    } while (AtText());
    *value = std::move(text);
    return true;
  }

  bool Text(std::string* text) {
    const bool raw = rest_[0] == 'r' || rest_[0] == 'R';
    if (absl::StrContains("rRuU", rest_[0])) rest_.remove_prefix(1);
    const char quote = rest_[0];
    const std::string triple(3, quote);
    const bool is_long = absl::StartsWith(rest_, triple);
    const absl::string_view end =
        absl::string_view(triple).substr(0, is_long ? 3 : 1);
    rest_.remove_prefix(end.size());
    while (!absl::StartsWith(rest_, end)) {
      if (rest_.empty() || (rest_[0] == '\n' && !is_long)) return false;
      if (rest_[0] != '\\') {
        text->push_back(rest_[0]);
        rest_.remove_prefix(1);
      } else if (raw) {
        absl::StrAppend(text, rest_.substr(0, 2));
        rest_.remove_prefix(std::min<size_t>(2, rest_.size()));
      } else if (!Escape(text)) {
        return false;
      }
    }
    rest_.remove_prefix(end.size());
    return true;
  }

  bool Escape(std::string* text) {
    if (rest_.size() < 2) return false;
    const char c = rest_[1];
    rest_.remove_prefix(2);
    constexpr char kNames[] = "abfnrtv\\'\"";
    constexpr char kValues[] = "\a\b\f\n\r\t\v\\'\"";
    const absl::string_view names = kNames;
    if (const size_t at = names.find(c); at != names.npos) {
      text->push_back(kValues[at]);
    } else if (c == 'x') {
      return Code(2, text);
    } else if (c == 'u') {
      return Code(4, text);
    } else if (c == 'U') {
      return Code(8, text);
    } else if (c >= '0' && c <= '7') {
      uint32_t code = c - '0';
      for (int i = 0; i < 2 && !rest_.empty(); ++i) {
        if (rest_[0] < '0' || rest_[0] > '7') break;
        code = code * 8 + (rest_[0] - '0');
        rest_.remove_prefix(1);
      }
      tokenizer::AppendCharacter(code, text);
    } else if (c == 'N') {
      return false;  // by its name in Unicode
    } else if (c != '\n') {
      text->push_back('\\');
      text->push_back(c);
    }
    return true;
  }

  bool Code(size_t digits, std::string* text) {
    uint32_t code = 0;
    const std::string hex(rest_.substr(0, digits));
    if (hex.size() != digits || !absl::SimpleHexAtoi(hex, &code) ||
        code > 0x10FFFF) {
      return false;
    }
    rest_.remove_prefix(digits);
    tokenizer::AppendCharacter(code, text);
    return true;
  }

  bool Word(Json* value) {
    size_t size = 0;
    while (size < rest_.size() &&
           (absl::ascii_isalnum(static_cast<unsigned char>(rest_[size])) ||
            absl::StrContains("+-._", rest_[size]))) {
      ++size;
    }
    const absl::string_view word = rest_.substr(0, size);
    rest_.remove_prefix(size);
    int64_t integer = 0;
    double number = 0.0;
    if (word == "True" || word == "False") {
      *value = word == "True";
    } else if (word == "None") {
      *value = nullptr;
    } else if (word.empty() || word.find_first_of("0123456789") == word.npos) {
      return false;  // also inf and nan, which are names in Python
    } else if (absl::SimpleAtoi(word, &integer)) {
      *value = integer;
    } else if (absl::SimpleAtod(absl::StrReplaceAll(word, {{"_", ""}}),
                                &number)) {
      *value = number;
    } else {
      return false;
    }
    return true;
  }

  absl::string_view rest_;
};

}  // namespace

absl::optional<Json> PythonLiteral(absl::string_view text) {
  return Reader(absl::StripAsciiWhitespace(text)).Read();
}

}  // namespace capstan::evaluate
