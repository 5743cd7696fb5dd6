// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/math_answer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "text/pattern/pattern.h"

namespace capstan::grpo {
namespace {

using absl::string_view;

// Expressions are nested no deeper, and lists are no longer.
constexpr int kMostDepth = 32;
constexpr size_t kMostParts = 64;
// Longer ones are no values, and compared as texts.
constexpr size_t kMostBytes = 1000;
// Of integers that a double holds exactly.
constexpr size_t kExactDigits = 15;

const double kPi = std::acos(-1.0);

// Of texts of up to kMostBytes, for which each search ends.
std::string Replaced(const Pattern& pattern, string_view text,
                     string_view with) {
  return pattern.Replace(text, with).value();
}

bool IsDigit(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c));
}

// The bytes of `text` up to the brace that closes the one before it; npos: none
// does.
size_t ClosingBrace(string_view text) {
  int depth = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i;
    }
  }
  return string_view::npos;
}

// What a number may be of: "42 apples", "12 cm^2", "5 miles/hour".
std::string WithoutUnit(string_view text) {
  static const Pattern& unit = Pattern::Constant(
      "(?<=[0-9}])\\s+(?!(?:hundred|thousand|[mb]illion|trillion|dozen|pi"
      "|sqrt|and|or|to)\\b)[A-Za-z]{2,}(?:[ /][A-Za-z]+)*(?:\\^?[23])?$");
  return Replaced(unit, text, "");
}

// One spelling of what is written in several ways; spaces are gone.
std::string Normalized(string_view text) {
  static const Pattern& unit = Pattern::Constant(
      "(?<=[0-9}\\s])\\s*\\\\(?:text|mathrm|mbox|textrm)\\s*\\{[^{}]*\\}"
      "(?:\\^\\{?[23]\\}?)?\\s*$");
  static const Pattern& words = Pattern::Constant(
      "\\\\(?:text|textbf|textit|mathrm|mathbf|mbox|textrm)\\s*\\{([^{}]*)\\}");
  static const Pattern& name = Pattern::Constant("^\\s*[A-Za-z]\\s*=\\s*");
  static const Pattern& sizes = Pattern::Constant(
      "\\\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\\\\[!,;: ()\\[\\]]|~|"
      "\\\\?\\$|\\^\\s*\\{?\\s*\\\\circ\\s*\\}?|°");
  static const Pattern& fractions = Pattern::Constant("\\\\[tdc]frac");
  std::string s(absl::StripAsciiWhitespace(text));
  if (s.size() > kMostBytes) return s;
  s = Replaced(sizes, s, "");
  s = Replaced(unit, s, "");
  s = Replaced(words, s, "${1}");
  s = Replaced(fractions, s, "\\frac");
  s = Replaced(name, s, "");
  s = std::string(absl::StripAsciiWhitespace(s));
  while (!s.empty() && absl::StrContains(".,;:", s.back())) s.pop_back();
  s = WithoutUnit(s);
  s = absl::StrReplaceAll(s, {{"\\%", "%"},
                              {"{,}", ","},
                              {"\\cdot", "*"},
                              {"\\times", "*"},
                              {"−", "-"},
                              {"\\{", "{"},
                              {"\\}", "}"}});
  s.erase(
      std::remove_if(s.begin(), s.end(),
                     [](unsigned char c) { return absl::ascii_isspace(c); }),
      s.end());
  return s;
}

// Reads an expression from left to right. ok() turns false where it is none.
class Reader {
 public:
  explicit Reader(string_view text) : rest_(text) {}

  absl::optional<double> All() {
    const double value = Sum();
    if (!ok_ || !rest_.empty() || !std::isfinite(value)) return absl::nullopt;
    return value;
  }

 private:
  double Fail() {
    ok_ = false;
    return 0.0;
  }

  double Sum() {
    if (++depth_ > kMostDepth) return Fail();
    double sum = Product();
    while (ok_) {
      if (absl::ConsumePrefix(&rest_, "+")) {
        sum += Product();
      } else if (absl::ConsumePrefix(&rest_, "-")) {
        sum -= Product();
      } else {
        break;
      }
    }
    --depth_;
    return sum;
  }

  // Whether a factor without a sign before it begins here.
  bool AtFactor() const {
    return !rest_.empty() && (absl::StrContains("({\\", rest_[0]) ||
                              absl::StartsWith(rest_, "π"));
  }

  double Product() {
    double sign = 1.0;
    while (absl::ConsumePrefix(&rest_, "-")) sign = -sign;
    absl::ConsumePrefix(&rest_, "+");
    // 3\frac{1}{2} is a mixed number, and 3\sqrt{2} a product.
    const size_t before = rest_.size();
    const string_view begin = rest_;
    double product = Power();
    const string_view first = begin.substr(0, before - rest_.size());
    if (ok_ && std::all_of(first.begin(), first.end(), IsDigit) &&
        absl::StartsWith(rest_, "\\frac")) {
      product += Power();
    }
    while (ok_) {
      if (absl::ConsumePrefix(&rest_, "*")) {
        product *= SignedPower();
      } else if (absl::ConsumePrefix(&rest_, "/")) {
        product /= SignedPower();
      } else if (AtFactor()) {
        product *= Power();
      } else {
        break;
      }
    }
    return sign * product;
  }

  double SignedPower() {
    return absl::ConsumePrefix(&rest_, "-") ? -Power() : Power();
  }

  double Power() {
    const double base = Factor();
    if (!ok_ || !absl::ConsumePrefix(&rest_, "^")) return base;
    return std::pow(base, SignedPower());
  }

  double Group(char close) {
    const double value = Sum();
    if (!ok_ || rest_.empty() || rest_[0] != close) return Fail();
    rest_.remove_prefix(1);
    return value;
  }

  // {12}, or the 1 of \frac12.
  double Braced() {
    if (absl::ConsumePrefix(&rest_, "{")) return Group('}');
    if (rest_.empty() || !IsDigit(rest_[0])) return Fail();
    const double digit = rest_[0] - '0';
    rest_.remove_prefix(1);
    return digit;
  }

  double Factor() {
    if (absl::ConsumePrefix(&rest_, "(")) return Group(')');
    if (absl::ConsumePrefix(&rest_, "{")) return Group('}');
    if (absl::ConsumePrefix(&rest_, "\\frac")) {
      const double above = Braced();
      return ok_ ? above / Braced() : 0.0;
    }
    if (absl::ConsumePrefix(&rest_, "\\sqrt[3]")) return std::cbrt(Braced());
    if (absl::ConsumePrefix(&rest_, "\\sqrt")) return std::sqrt(Braced());
    if (absl::ConsumePrefix(&rest_, "sqrt(")) return std::sqrt(Group(')'));
    if (absl::ConsumePrefix(&rest_, "\\pi") ||
        absl::ConsumePrefix(&rest_, "π")) {
      return kPi;
    }
    return Digits();
  }

  double Digits() {
    static const Pattern& number = Pattern::Constant(
        "^(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\\.[0-9]*)?"
        "(?:[eE][+-]?[0-9]+)?|^\\.[0-9]+");
    const std::vector<std::string> found = number.FindAll(rest_).value();
    if (found.empty()) return Fail();
    rest_.remove_prefix(found[0].size());
    double value = 0.0;
    if (!absl::SimpleAtod(absl::StrReplaceAll(found[0], {{",", ""}}), &value)) {
      return Fail();
    }
    return value;
  }

  string_view rest_;
  int depth_ = 0;
  bool ok_ = true;
};

// Of what Normalized gives.
absl::optional<MathValue> ValueOf(string_view normalized) {
  if (normalized.empty() || normalized.size() > kMostBytes) {
    return absl::nullopt;
  }
  MathValue result;
  result.percent = absl::ConsumeSuffix(&normalized, "%");
  const absl::optional<double> value = Reader(normalized).All();
  if (!value.has_value()) return absl::nullopt;
  result.value = *value;
  return result;
}

bool IsLongInteger(string_view text) {
  absl::ConsumePrefix(&text, "-");
  return text.size() > kExactDigits &&
         std::all_of(text.begin(), text.end(), IsDigit);
}

bool Close(const MathValue& a, const MathValue& b, double tolerance) {
  const auto close = [&](double x) {
    return std::abs(x - b.value) <=
           tolerance * (b.value == 0.0 ? 1.0 : std::abs(b.value));
  };
  // 50% is 50 or 0.5.
  if (close(a.value)) return true;
  if (a.percent == b.percent) return false;
  return close(a.percent ? a.value / 100.0 : a.value * 100.0);
}

struct Parts {
  std::string brackets;  // "[)"; "": none
  std::vector<std::string> parts;
};

// "(1,2)" as its parts, and so on; of anything else one.
Parts PartsOf(const std::string& s) {
  Parts result;
  string_view inner = s;
  if (inner.size() >= 2 && absl::StrContains("([{", inner[0]) &&
      absl::StrContains(")]}", inner.back())) {
    result.brackets = {inner[0], inner.back()};
    inner = inner.substr(1, inner.size() - 2);
  }
  int depth = 0;
  std::string part;
  for (const char c : inner) {
    if (absl::StrContains("([{", c)) ++depth;
    if (absl::StrContains(")]}", c)) --depth;
    if (depth < 0) return {"", {s}};  // (1)+(2)
    if (depth == 0 && (c == ',' || c == ';')) {
      result.parts.push_back(part);
      part.clear();
    } else {
      part.push_back(c);
    }
  }
  result.parts.push_back(part);
  return result;
}

bool Same(const std::string& a, const std::string& b, double tolerance,
          int depth) {
  if (a == b) return !a.empty();
  const absl::optional<MathValue> x = ValueOf(a);
  const absl::optional<MathValue> y = ValueOf(b);
  if (x.has_value() && y.has_value()) {
    if (IsLongInteger(a) && IsLongInteger(b)) return false;
    return Close(*x, *y, tolerance);
  }
  if (depth > kMostDepth) return false;
  const Parts p = PartsOf(a);
  const Parts q = PartsOf(b);
  if (p.brackets != q.brackets || p.parts.size() != q.parts.size() ||
      p.parts.size() > kMostParts ||
      (p.parts.size() == 1 && p.brackets.empty())) {
    return false;
  }
  // The order of a set, or of several solutions, doesn't matter.
  const bool any_order = p.brackets.empty() || p.brackets == "{}";
  std::vector<bool> used(q.parts.size());
  for (size_t i = 0; i < p.parts.size(); ++i) {
    size_t j = any_order ? 0 : i;
    const size_t end = any_order ? q.parts.size() : i + 1;
    while (j < end &&
           (used[j] || !Same(p.parts[i], q.parts[j], tolerance, depth + 1))) {
      ++j;
    }
    if (j == end) return false;
    used[j] = true;
  }
  return true;
}

}  // namespace

absl::optional<std::string> MarkedAnswer(string_view text) {
  size_t at = string_view::npos;
  for (const string_view box : {"\\boxed", "\\fbox"}) {
    const size_t found = text.rfind(box);
    if (found == string_view::npos) continue;
    if (at == string_view::npos || found + box.size() > at) {
      at = found + box.size();
    }
  }
  if (at != string_view::npos) {
    string_view rest = absl::StripLeadingAsciiWhitespace(text.substr(at));
    if (!absl::ConsumePrefix(&rest, "{")) {
      // \boxed 5
      return std::string(rest.substr(0, rest.find_first_of(" $\n")));
    }
    const size_t end = ClosingBrace(rest);
    return end == string_view::npos ? "" : std::string(rest.substr(0, end));
  }
  const size_t hashes = text.rfind("####");
  if (hashes == string_view::npos) return absl::nullopt;
  const string_view rest = text.substr(hashes + 4);
  return std::string(rest.substr(0, rest.find('\n')));
}

std::string FinalAnswer(string_view text) {
  static const Pattern& sentence =
      Pattern::Constant("(?im)answer is\\s*:?\\s*(.+?)\\s*(?:\\.(?:\\s|$)|$)");
  static const Pattern& number = Pattern::Constant(
      "(?:(?<![\\w)])-)?\\$?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
      "(?:\\.[0-9]+)?(?:/[0-9]+)?%?|(?:(?<![\\w)])-)?\\.[0-9]+");
  const absl::optional<std::string> marked = MarkedAnswer(text);
  if (marked.has_value()) return *marked;
  for (const Pattern* const pattern : {&sentence, &number}) {
    // Where the search gives up, on megabytes of digits, there is no answer.
    const auto found = pattern->FindAll(text);
    if (found.ok() && !found->empty()) return found->back();
  }
  return "";
}

absl::optional<MathValue> MathValueOf(string_view text) {
  return ValueOf(Normalized(text));
}

bool SameAnswer(string_view answer, string_view reference, double tolerance) {
  return Same(Normalized(answer), Normalized(reference), tolerance, 0);
}

}  // namespace capstan::grpo
