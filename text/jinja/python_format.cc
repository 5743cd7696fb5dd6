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
#include "absl/types/optional.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/strings.h"

namespace capstan::jinja {
namespace {

constexpr int64_t kMostWidth = 100'000;
constexpr int64_t kMostPrecision = 1'000;
constexpr char kIntegerTypes[] = "bdoxX";
constexpr char kFloatTypes[] = "eEfFgG%";

// [[fill]align][sign][#][0][width][,][.precision][type], and the same of a %
// format.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';    // + - or space
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  bool groups = false;     // digits, by commas
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

std::string Truncated(const std::string& text, int64_t precision) {
  size_t at = 0;
  for (int64_t count = 0; at < text.size() && count != precision; ++count) {
    tokenizer::NextCharacter(text, &at);
  }
  return text.substr(0, at);
}

[[noreturn]] void Misfit(const Value& value) {
  throw Error(
      absl::StrCat("a format's specifier doesn't fit a ", value.TypeName()));
}

// The digits of a positive number as C's printf, whose floating formats
// Python's are.
std::string FloatDigits(double value, const Spec& spec) {
  if (spec.type == '\0') {
    if (spec.precision < 0) return ToText(value);
    throw Error("a format with a precision wants a type as well");
  }
  const bool percent = spec.type == '%';
  const std::string format =
      absl::StrCat("%", spec.alternate ? "#" : "", ".*",
                   std::string(1, percent ? 'f' : spec.type));
  const auto digits = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  std::string out(512 + kMostPrecision, '\0');
  out.resize(static_cast<size_t>(std::snprintf(out.data(), out.size(),
                                               format.c_str(), digits,
                                               percent ? value * 100 : value)));
  if (percent) out += '%';
  return out;
}

std::string IntegerDigits(uint64_t number, char type) {
  const unsigned base = type == 'b'          ? 2
                        : type == 'o'        ? 8
                        : (type | 32) == 'x' ? 16
                                             : 10;
  const char* const signs =
      type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out.insert(out.begin(), signs[number % base]);
    number /= base;
  } while (number > 0);
  return out;
}

std::string FormatNumber(const Value& value, Spec spec) {
  const bool is_integer = value.is_int() || value.is_bool() || value.is_big();
  const bool as_float =
      value.is_float() || absl::StrContains(kFloatTypes, spec.type);
  const char* const types = as_float ? kFloatTypes : kIntegerTypes;
  if ((!is_integer && !value.is_float()) ||
      (!as_float && spec.precision >= 0) ||
      (spec.type != '\0' && !absl::StrContains(types, spec.type))) {
    Misfit(value);
  }
  const bool decimal = spec.type == '\0' || spec.type == 'd';
  bool negative = value.number() < 0;
  std::string prefix;
  std::string digits;
  if (as_float) {
    negative = std::signbit(value.number()) && !std::isnan(value.number());
    digits = FloatDigits(std::fabs(value.number()), spec);
  } else if (value.is_big()) {
    if (!decimal) throw Error("an integer exceeds 64 bits");
    digits = value.digits().substr(negative ? 1 : 0);
  } else {
    const auto size = static_cast<uint64_t>(value.integer());
    digits = IntegerDigits(negative ? uint64_t{0} - size : size, spec.type);
    if (spec.alternate && !decimal) prefix = {'0', spec.type};
  }
  if (spec.groups) {
    if (spec.zero) throw Error("a format can't have both `0` and `,`");
    if (!as_float && !decimal) Misfit(value);
    size_t at = std::min(digits.find_first_not_of("0123456789"), digits.size());
    for (; at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  }
  const std::string sign = negative           ? "-"
                           : spec.sign == '-' ? ""
                                              : std::string(1, spec.sign);
  const std::string head = sign + prefix;
  const bool zeros = spec.zero && spec.align == '\0';
  if (!zeros && spec.align != '=') return Padded(head + digits, spec, '>');
  // What fills stands between the sign and the digits.
  if (zeros) spec.fill = "0";
  spec.align = '>';
  spec.width -= static_cast<int64_t>(head.size());
  return head + Padded(digits, spec, '>');
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

// Reads the precision at *at, if there is one.
void ReadPrecision(absl::string_view text, size_t* at, Spec* spec) {
  if (*at >= text.size() || text[*at] != '.') return;
  ++*at;
  spec->precision = ReadNumber(text, at, kMostPrecision);
  if (spec->precision < 0) throw Error("a format lacks its precision");
}

// ---- str.format.

Spec ParseSpec(absl::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto now = [&] { return at < text.size() ? text[at] : '\0'; };
  const auto skip = [&](char sign) {
    if (now() != sign) return false;
    ++at;
    return true;
  };
  size_t second = 0;
  if (!text.empty()) tokenizer::NextCharacter(text, &second);
  if (second < text.size() && absl::StrContains("<>^=", text[second])) {
    spec.fill = std::string(text.substr(0, second));
    at = second;
  }
  if (absl::StrContains("<>^=", now())) spec.align = text[at++];
  if (absl::StrContains("+- ", now())) spec.sign = text[at++];
  spec.alternate = skip('#');
  spec.zero = skip('0');
  if (spec.zero && spec.fill == " ") spec.fill = "0";
  spec.width = std::max<int64_t>(0, ReadNumber(text, &at, kMostWidth));
  spec.groups = skip(',');
  ReadPrecision(text, &at, &spec);
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) throw Error("a format's specifier isn't known");
  return spec;
}

std::string Formatted(const Value& value, absl::string_view text) {
  if (text.empty()) return ToText(value);
  const Spec spec = ParseSpec(text);
  if (!value.is_string()) return FormatNumber(value, spec);
  if ((spec.type != '\0' && spec.type != 's') || spec.sign != '-' ||
      spec.alternate || spec.align == '=' || spec.groups) {
    Misfit(value);
  }
  return Padded(Truncated(value.string(), spec.precision), spec, '<');
}

// The fields of one format string, and what they stand for.
class Formatter {
 public:
  Formatter(Interpreter& interpreter, const Arguments& given)
      : interpreter_(interpreter), given_(given) {}

  std::string Run(absl::string_view text) {
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
      const char c = text[at];
      if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
        out += c;
        ++at;
      } else if (c == '}') {
        throw Error("format: `}` closes nothing");
      } else if (c == '{') {
        const size_t end = text.find('}', at);
        if (end == text.npos) throw Error("format: `{` isn't closed");
        out += Field(text.substr(at + 1, end - at - 1));
        interpreter_.SpendText(std::min<size_t>(out.size(), 1024));
        at = end;
      } else {
        out += c;
      }
    }
    return out;
  }

 private:
  // NAME, NAME!s, NAME!r, each with :SPEC.
  std::string Field(absl::string_view field) {
    if (absl::StrContains(field, '{')) {
      throw Error("format: fields within fields aren't supported");
    }
    size_t end = std::min(field.find_first_of("!:"), field.size());
    Value value = Named(field.substr(0, end));
    if (end < field.size() && field[end] == '!') {
      const absl::string_view conversion = field.substr(end, 2);
      if (conversion != "!s" && conversion != "!r") {
        throw Error("format: a conversion is !s or !r");
      }
      value = conversion == "!s" ? ToText(value) : Repr(value);
      end += 2;
      if (end < field.size() && field[end] != ':') {
        throw Error("format: expected `:` behind a conversion");
      }
    }
    field.remove_prefix(std::min(end + 1, field.size()));
    return Formatted(value, field);
  }

  const Value& Named(absl::string_view name) {
    const Value* found = nullptr;
    if (name.find_first_not_of("0123456789") == name.npos) {
      const bool automatic = name.empty();
      if (automatic_.value_or(automatic) != automatic) {
        throw Error("format: fields are numbered either all or none");
      }
      automatic_ = automatic;
      size_t place = 0;
      if (automatic) {
        place = next_++;
      } else if (!absl::SimpleAtoi(name, &place)) {
        place = given_.positional.size();
      }
      if (place < given_.positional.size()) found = &given_.positional[place];
    }
    for (const auto& [other, value] : given_.named) {
      if (other == name) found = &value;
    }
    if (found != nullptr) return *found;
    throw Error(absl::StrCat("format: there is no argument for {", name, "}"));
  }

  Interpreter& interpreter_;
  const Arguments& given_;
  absl::optional<bool> automatic_;
  size_t next_ = 0;
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
  // What stands at *at behind a %; *at is its last character then.
  std::string One(absl::string_view text, size_t* at) {
    Spec spec;
    const Value* named = nullptr;
    if (*at < text.size() && text[*at] == '(') named = &Named(text, at);
    for (; *at < text.size() && absl::StrContains("-+ #0", text[*at]); ++*at) {
      const char flag = text[*at];
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
      spec.alternate |= flag == '#';
      spec.zero |= flag == '0';
    }
    spec.width = std::max<int64_t>(0, ReadNumber(text, at, kMostWidth));
    ReadPrecision(text, at, &spec);
    if (*at >= text.size()) throw Error("a format ends in the midst");
    spec.type = text[*at];
    if (spec.type == '%') return "%";
    if (named != nullptr) return Converted(*named, spec);
    if (used_ >= values_.size()) throw Error("a format wants more arguments");
    return Converted(values_[used_++], spec);
  }

  // The value of (NAME) at *at.
  const Value& Named(absl::string_view text, size_t* at) {
    const size_t close = text.find(')', *at);
    if (close == text.npos) throw Error("a format's %(name) isn't closed");
    if (names_ == nullptr) throw Error("a format's %(name) wants a dict");
    const Value* const found =
        names_->Find(text.substr(*at + 1, close - *at - 1));
    if (found == nullptr) throw Error("a format's name isn't in the dict");
    *at = close + 1;
    return *found;
  }

  static std::string Converted(const Value& value, Spec spec) {
    const char type = spec.type;
    if (type == 's' || type == 'r') {
      const std::string text = type == 's' ? ToText(value) : Repr(value);
      return Padded(Truncated(text, spec.precision), spec, '>');
    }
    if (absl::StrContains("iu", type)) spec.type = 'd';
    if (spec.type == 'd' && value.is_float()) {
      if (!(std::fabs(value.number()) < 9.2e18)) {
        throw Error("an integer exceeds 64 bits");
      }
      return FormatNumber(static_cast<int64_t>(value.number()), spec);
    }
    if (absl::StrContains("doxXeEfFgG", spec.type)) {
      return FormatNumber(value, spec);
    }
    throw Error(
        absl::StrCat("a format's %", std::string(1, type), " isn't known"));
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
  return Formatter(interpreter, given).Run(text);
}

}  // namespace capstan::jinja
