// SPDX-License-Identifier: Apache-2.0
//
// Python's str.format and `text % values`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "text/jinja/interpreter.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {
namespace {

constexpr int64_t kMostWidth = 100'000;
constexpr int64_t kMostPrecision = 1'000;

// [[fill]align][sign][#][0][width][grouping][.precision][type], and the same
// of a % format.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';    // + - or space
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  char grouping = '\0';    // , or _
  int64_t precision = -1;  // none
  char type = '\0';
};

std::string Padded(const std::string& body, const Spec& spec, char align) {
  const int64_t pad = spec.width - CharacterCount(body);
  if (pad <= 0) return body;
  if (spec.align != '\0') align = spec.align;
  const int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += spec.fill;
  out += body;
  for (int64_t i = left; i < pad; ++i) out += spec.fill;
  return out;
}

// `digits` in groups from the right; what follows them isn't in it.
std::string Grouped(const std::string& digits, char sign, size_t each) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % each == 0) out += sign;
    out += digits[i];
  }
  return out;
}

// A number of `digits`, and `rest` behind them: a fraction and an exponent.
std::string Number(bool negative, const std::string& prefix, std::string digits,
                   const std::string& rest, const Spec& spec) {
  std::string head = negative           ? "-"
                     : spec.sign == '-' ? ""
                                        : std::string(1, spec.sign);
  head += prefix;
  const bool zeros = spec.align == '=' || (spec.zero && spec.align == '\0');
  const size_t each =
      prefix.empty() && !absl::StrContains("box", spec.type | 32) ? 3
      : spec.type == '\0' || spec.type == 'd'                     ? 3
                                                                  : 4;
  const std::string fill = spec.zero && spec.align == '\0' ? "0" : spec.fill;
  const auto body = [&] {
    return spec.grouping == '\0' ? digits
                                 : Grouped(digits, spec.grouping, each);
  };
  if (!zeros) return Padded(head + body() + rest, spec, '>');
  const auto size = [&] {
    return static_cast<int64_t>(head.size() + body().size() + rest.size());
  };
  if (fill == "0") {
    // Each of them takes a place, and a separator's besides.
    while (size() < spec.width) {
      const int64_t missing = spec.width - size();
      const int64_t separated = spec.grouping == '\0' ? 0 : 1;
      const auto zeros =
          std::max<int64_t>(1, missing * static_cast<int64_t>(each) /
                                   (static_cast<int64_t>(each) + separated));
      digits.insert(0, static_cast<size_t>(zeros), '0');
    }
    return head + body() + rest;
  }
  std::string pad;
  for (int64_t i = size(); i < spec.width; ++i) pad += fill;
  return head + pad + body() + rest;
}

std::string InBase(uint64_t number, unsigned base, bool upper) {
  const char* const signs = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out.insert(out.begin(), signs[number % base]);
    number /= base;
  } while (number > 0);
  return out;
}

std::string CharacterOf(int64_t code) {
  if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
    throw Error("a format's %c wants a character's number");
  }
  std::string text;
  tokenizer::AppendCharacter(static_cast<uint32_t>(code), &text);
  return text;
}

std::string FormatInteger(const Value& value, const Spec& spec) {
  const char type = spec.type == '\0' || spec.type == 'n' || spec.type == 'i' ||
                            spec.type == 'u'
                        ? 'd'
                        : spec.type;
  bool negative = false;
  std::string digits;
  std::string prefix;
  if (value.is_big()) {
    if (type != 'd') throw Error("an integer exceeds 64 bits");
    digits = value.digits();
    negative = absl::StartsWith(digits, "-");
    if (negative) digits.erase(0, 1);
  } else {
    const int64_t number = value.integer();
    negative = number < 0;
    const uint64_t size = negative ? uint64_t{0} - static_cast<uint64_t>(number)
                                   : static_cast<uint64_t>(number);
    const unsigned base = type == 'b'   ? 2
                          : type == 'o' ? 8
                          : type == 'd' ? 10
                                        : 16;
    digits = InBase(size, base, type == 'X');
    if (spec.alternate && type != 'd') prefix = std::string("0") + type;
  }
  return Number(negative, prefix, std::move(digits), "", spec);
}

// Digits as C's printf, whose floating formats Python's are; the type is one
// of e E f F g G.
std::string Printed(double value, char type, int64_t precision,
                    bool alternate) {
  const std::string format =
      absl::StrCat("%", alternate ? "#" : "", ".*", std::string(1, type));
  const int digits = static_cast<int>(precision);
  std::string out(512 + kMostPrecision, '\0');
  out.resize(static_cast<size_t>(
      std::snprintf(out.data(), out.size(), format.c_str(), digits, value)));
  return out;
}

std::string FormatFloat(double value, const Spec& spec) {
  std::string text;
  const double size = std::fabs(value);
  const bool negative = std::signbit(value) && !std::isnan(value);
  if (!std::isfinite(value)) {
    text = std::isnan(value) ? "nan" : "inf";
    if (spec.type == 'F' || spec.type == 'E' || spec.type == 'G') {
      std::transform(text.begin(), text.end(), text.begin(),
                     [](char c) { return static_cast<char>(c - 32); });
    }
    return Number(negative, "", "", text, spec);
  }
  if (spec.type == '\0' && spec.precision < 0) {
    text = ToText(Value(size));
  } else if (spec.type == '\0') {
    // As g, but with a digit behind the point.
    text = Printed(size, 'g', std::max<int64_t>(1, spec.precision), false);
    if (!absl::StrContains(text, '.') && !absl::StrContains(text, 'e')) {
      if (static_cast<int64_t>(text.size()) >=
          std::max<int64_t>(1, spec.precision)) {
        text =
            Printed(size, 'e', std::max<int64_t>(0, spec.precision - 1), false);
        const size_t e = text.find('e');
        std::string digits = text.substr(0, e);
        if (absl::StrContains(digits, '.')) {
          digits.resize(digits.find_last_not_of('0') + 1);
          if (digits.back() == '.') digits.pop_back();
        }
        text = digits + text.substr(e);
      } else {
        text += ".0";
      }
    }
  } else if (spec.type == '%') {
    text = Printed(size * 100, 'f', spec.precision < 0 ? 6 : spec.precision,
                   spec.alternate) +
           "%";
  } else {
    text = Printed(size, spec.type == 'n' ? 'g' : spec.type,
                   spec.precision < 0 ? 6 : spec.precision, spec.alternate);
  }
  const size_t end =
      std::min(text.find_first_not_of("0123456789"), text.size());
  return Number(negative, "", text.substr(0, end), text.substr(end), spec);
}

std::string Truncated(const std::string& text, int64_t precision) {
  if (precision < 0) return text;
  std::string out;
  int64_t count = 0;
  for (size_t at = 0; at < text.size() && count < precision; ++count) {
    const size_t begin = at;
    tokenizer::NextCharacter(text, &at);
    out += text.substr(begin, at - begin);
  }
  return out;
}

// repr() with what isn't ASCII as escapes.
std::string Ascii(const Value& value) {
  const std::string text = Repr(value);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = tokenizer::NextCharacter(text, &at);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&out, "\\U%08x", c);
    }
  }
  return out;
}

// Reads digits of `text` from *at on; -1 if there are none.
int64_t ReadNumber(absl::string_view text, size_t* at, int64_t most) {
  const size_t begin = *at;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') ++*at;
  if (*at == begin) return -1;
  int64_t number = 0;
  if (!absl::SimpleAtoi(text.substr(begin, *at - begin), &number) ||
      number > most) {
    throw LimitError("a format's width or precision is too large");
  }
  return number;
}

// ---- str.format.

Spec ParseSpec(const std::string& text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) {
    return c != '\0' && absl::StrContains("<>^=", c);
  };
  const auto now = [&] { return at < text.size() ? text[at] : '\0'; };
  size_t second = 0;
  if (!text.empty()) tokenizer::NextCharacter(text, &second);
  if (second > 0 && second < text.size() && is_align(text[second])) {
    spec.fill = text.substr(0, second);
    spec.align = text[second];
    at = second + 1;
  } else if (is_align(now())) {
    spec.align = text[at++];
  }
  if (now() != '\0' && absl::StrContains("+- ", now())) spec.sign = text[at++];
  if (now() == '#') {
    spec.alternate = true;
    ++at;
  }
  if (now() == '0') {
    spec.zero = true;
    ++at;
    if (spec.fill == " ") spec.fill = "0";
  }
  spec.width = std::max<int64_t>(0, ReadNumber(text, &at, kMostWidth));
  if (now() == ',' || now() == '_') spec.grouping = text[at++];
  if (now() == '.') {
    ++at;
    spec.precision = ReadNumber(text, &at, kMostPrecision);
    if (spec.precision < 0) throw Error("a format lacks its precision");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) throw Error("a format's specifier isn't known");
  return spec;
}

[[noreturn]] void WrongSpec(const Value& value) {
  throw Error(
      absl::StrCat("a format's specifier doesn't fit a ", value.TypeName()));
}

std::string Formatted(const Value& value, const std::string& text) {
  if (text.empty()) return ToText(value);
  const Spec spec = ParseSpec(text);
  if (value.is_string()) {
    if ((spec.type != '\0' && spec.type != 's') || spec.sign != '-' ||
        spec.alternate || spec.align == '=' || spec.grouping != '\0') {
      WrongSpec(value);
    }
    return Padded(Truncated(value.string(), spec.precision), spec, '<');
  }
  const bool integer = value.is_int() || value.is_bool() || value.is_big();
  if (!integer && !value.is_float()) WrongSpec(value);
  const bool as_float =
      spec.type != '\0' && absl::StrContains("eEfFgG%", spec.type);
  if (value.is_float() || as_float) {
    if (!as_float && spec.type != '\0' && spec.type != 'n') WrongSpec(value);
    return FormatFloat(value.number(), spec);
  }
  if (spec.precision >= 0) WrongSpec(value);
  if (spec.type == 'c') {
    if (spec.sign != '-' || spec.alternate || spec.grouping != '\0') {
      WrongSpec(value);
    }
    return Padded(CharacterOf(value.integer()), spec, '<');
  }
  if (spec.type != '\0' && !absl::StrContains("bdnoxX", spec.type)) {
    WrongSpec(value);
  }
  const bool decimal = spec.type == '\0' || spec.type == 'd';
  if (spec.grouping == ',' && !decimal) WrongSpec(value);
  if (spec.grouping != '\0' && spec.type == 'n') WrongSpec(value);
  return FormatInteger(value, spec);
}

// The fields of one format string, and what they stand for.
class Formatter {
 public:
  Formatter(Interpreter& interpreter, const Arguments& given)
      : interpreter_(interpreter), given_(given) {}

  std::string Run(absl::string_view text, int depth) {
    if (depth > 2) throw Error("format: fields nest too deeply");
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
      const char c = text[at];
      if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
        out += c;
        ++at;
      } else if (c == '}') {
        throw Error("format: `}` closes nothing");
      } else if (c == '{') {
        const size_t end = FieldEnd(text, at);
        out += Field(text.substr(at + 1, end - at - 1), depth);
        interpreter_.SpendText(out.size() > 1024 ? 1024 : out.size());
        at = end;
      } else {
        out += c;
      }
    }
    return out;
  }

 private:
  // Where the field that opens at `open` closes.
  static size_t FieldEnd(absl::string_view text, size_t open) {
    int depth = 0;
    bool bracket = false;
    for (size_t at = open; at < text.size(); ++at) {
      if (text[at] == '[' && depth == 1) bracket = true;
      if (text[at] == ']') bracket = false;
      if (bracket) continue;
      if (text[at] == '{') ++depth;
      if (text[at] == '}' && --depth == 0) return at;
    }
    throw Error("format: `{` isn't closed");
  }

  std::string Field(absl::string_view field, int depth) {
    size_t end = 0;
    bool bracket = false;
    while (end < field.size() &&
           (bracket || (field[end] != '!' && field[end] != ':'))) {
      if (field[end] == '[') bracket = true;
      if (field[end] == ']') bracket = false;
      if (field[end] == '{') throw Error("format: `{` in a field's name");
      ++end;
    }
    Value value = Named(field.substr(0, end));
    if (end < field.size() && field[end] == '!') {
      const char conversion = end + 1 < field.size() ? field[end + 1] : '\0';
      end += 2;
      if (conversion == 's') {
        value = ToText(value);
      } else if (conversion == 'r') {
        value = Repr(value);
      } else if (conversion == 'a') {
        value = Ascii(value);
      } else {
        throw Error("format: a conversion is !s, !r or !a");
      }
      if (end < field.size() && field[end] != ':') {
        throw Error("format: expected `:` behind a conversion");
      }
    }
    if (end >= field.size()) return Formatted(value, "");
    return Formatted(value, Run(field.substr(end + 1), depth + 1));
  }

  Value Named(absl::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    const absl::string_view first = name.substr(0, end);
    int64_t place = 0;
    const Value* found = nullptr;
    if (first.empty() || absl::SimpleAtoi(first, &place)) {
      if (first.find_first_not_of("0123456789") != first.npos) place = -1;
      const bool automatic = first.empty();
      if (automatic_.value_or(automatic) != automatic) {
        throw Error("format: fields are numbered either all or none");
      }
      automatic_ = automatic;
      if (automatic) place = next_++;
      if (place >= 0 &&
          place < static_cast<int64_t>(given_.positional.size())) {
        found = &given_.positional[static_cast<size_t>(place)];
      }
    } else {
      found = given_.Find(given_.positional.size(), first);
    }
    if (found == nullptr) {
      throw Error(
          absl::StrCat("format: there is no argument for {", first, "}"));
    }
    return Part(*found, name.substr(end));
  }

  // `.name` and `[key]`.
  Value Part(Value of, absl::string_view path) {
    while (!path.empty()) {
      const bool item = path[0] == '[';
      const size_t end = item ? path.find(']') : path.find_first_of(".[", 1);
      if (item && end == path.npos) throw Error("format: `[` isn't closed");
      const absl::string_view name =
          path.substr(1, std::min(end, path.size()) - 1);
      if (name.empty()) throw Error("format: an attribute has no name");
      int64_t index = 0;
      if (!item) {
        of = interpreter_.Attribute(of, name);
      } else if (absl::SimpleAtoi(name, &index)) {
        of = interpreter_.Item(of, Value(index));
      } else {
        of = interpreter_.Item(of, Value(std::string(name)));
      }
      path = end >= path.size() ? "" : path.substr(end + (item ? 1 : 0));
      if (!path.empty() && path[0] != '.' && path[0] != '[') {
        throw Error("format: expected `.` or `[` behind `]`");
      }
    }
    return of;
  }

  Interpreter& interpreter_;
  const Arguments& given_;
  absl::optional<bool> automatic_;
  int64_t next_ = 0;
};

// ---- %.

class PercentFormatter {
 public:
  PercentFormatter(const std::vector<Value>& values, const Dict* names)
      : values_(values), names_(names) {}

  std::string Run(absl::string_view text, bool may_be_left) {
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '%') {
        ++at;
        out += One(text, &at);
      } else {
        out += text[at];
      }
    }
    if (!may_be_left && used_ < values_.size()) {
      throw Error("a format wants fewer arguments");
    }
    return out;
  }

 private:
  Value Next() {
    if (used_ >= values_.size()) throw Error("a format wants more arguments");
    return values_[used_++];
  }
  int64_t NumberOrNext(absl::string_view text, size_t* at, int64_t most) {
    if (*at < text.size() && text[*at] == '*') {
      ++*at;
      const Value next = Next();
      if (!next.is_int() && !next.is_bool()) {
        throw Error("a format's * wants an integer");
      }
      if (next.integer() > most || next.integer() < -most) {
        throw LimitError("a format's width or precision is too large");
      }
      return next.integer();
    }
    return ReadNumber(text, at, most);
  }

  // What stands at *at behind a %; *at is its last character then.
  std::string One(absl::string_view text, size_t* at) {
    Spec spec;
    absl::optional<Value> value;
    if (*at < text.size() && text[*at] == '(') value = Named(text, at);
    for (; *at < text.size() && absl::StrContains("-+ #0", text[*at]); ++*at) {
      const char flag = text[*at];
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
      spec.alternate |= flag == '#';
      spec.zero |= flag == '0';
    }
    spec.width = NumberOrNext(text, at, kMostWidth);
    if (spec.width < -1) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (*at < text.size() && text[*at] == '.') {
      ++*at;
      spec.precision =
          std::max<int64_t>(0, NumberOrNext(text, at, kMostPrecision));
    }
    while (*at < text.size() && absl::StrContains("hlL", text[*at])) ++*at;
    if (*at >= text.size()) throw Error("a format ends in the midst");
    spec.type = text[*at];
    if (spec.type == '%') return "%";
    return Converted(value.has_value() ? *value : Next(), spec);
  }

  Value Named(absl::string_view text, size_t* at) {
    int depth = 0;
    size_t close = *at;
    for (; close < text.size(); ++close) {
      if (text[close] == '(') ++depth;
      if (text[close] == ')' && --depth == 0) break;
    }
    if (close >= text.size()) throw Error("a format's %(name) isn't closed");
    if (names_ == nullptr) throw Error("a format's %(name) wants a dict");
    const Value* const found =
        names_->Find(text.substr(*at + 1, close - *at - 1));
    if (found == nullptr) throw Error("a format's name isn't in the dict");
    *at = close + 1;
    return *found;
  }

  static std::string Converted(const Value& value, Spec spec) {
    const char type = spec.type;
    const bool integer = value.is_int() || value.is_bool() || value.is_big();
    if (type == 's' || type == 'r' || type == 'a') {
      const std::string text = type == 's'   ? ToText(value)
                               : type == 'r' ? Repr(value)
                                             : Ascii(value);
      return Padded(Truncated(text, spec.precision), spec, '>');
    }
    if (type == 'c') {
      if (value.is_string() && CharacterCount(value.string()) == 1) {
        return Padded(value.string(), spec, '>');
      }
      if (!value.is_int() && !value.is_bool()) Misfit(value, type);
      return Padded(CharacterOf(value.integer()), spec, '>');
    }
    if (absl::StrContains("diu", type)) {
      if (value.is_float()) {
        if (!std::isfinite(value.number())) Misfit(value, type);
        if (std::fabs(value.number()) >= 9.2e18) {
          throw Error("an integer exceeds 64 bits");
        }
        return Integer(Value(static_cast<int64_t>(value.number())), spec);
      }
      if (!integer) Misfit(value, type);
      return Integer(value, spec);
    }
    if (absl::StrContains("oxX", type)) {
      if (!integer) Misfit(value, type);
      return Integer(value, spec);
    }
    if (absl::StrContains("eEfFgG", type)) {
      if (!integer && !value.is_float()) Misfit(value, type);
      return FormatFloat(value.number(), spec);
    }
    throw Error(
        absl::StrCat("a format's %", std::string(1, type), " isn't known"));
  }

  // A precision is how many digits there are at least.
  static std::string Integer(const Value& value, Spec spec) {
    if (spec.precision < 0) return FormatInteger(value, spec);
    Spec digits = spec;
    digits.align = '\0';
    digits.zero = true;
    digits.sign = '-';
    digits.width = spec.precision + (value.number() < 0 ? 1 : 0) +
                   (spec.alternate && spec.type != 'd' ? 2 : 0);
    std::string text = FormatInteger(value, digits);
    if (value.number() >= 0 && spec.sign != '-') text.insert(0, 1, spec.sign);
    if (spec.zero && spec.align == '\0') spec.fill = "0";
    return Padded(text, spec, '>');
  }

  [[noreturn]] static void Misfit(const Value& value, char type) {
    throw Error(absl::StrCat("a format's %", std::string(1, type),
                             " doesn't fit a ", value.TypeName()));
  }

  const std::vector<Value>& values_;
  const Dict* const names_;
  size_t used_ = 0;
};

}  // namespace

std::string Percent(const std::string& text, const std::vector<Value>& values,
                    const Dict* names) {
  // Python takes a dict or a list for names, which needn't all be used.
  const bool may_be_left =
      names != nullptr || (values.size() == 1 && values[0].is_sequence() &&
                           !values[0].sequence()->tuple);
  return PercentFormatter(values, names).Run(text, may_be_left);
}

std::string Format(Interpreter& interpreter, const std::string& text,
                   const Arguments& given) {
  return Formatter(interpreter, given).Run(text, 0);
}

}  // namespace capstan::jinja
