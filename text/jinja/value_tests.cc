// SPDX-License-Identifier: Apache-2.0
//
// jinja2's tests, as in `x is defined` (jinja2/tests.py).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/signature.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {
namespace {

// v % divisor of a test, 0 <= v % 2 < 2 as Python's.
double Remainder(const Value& v, int64_t divisor) {
  if (!v.is_number()) {
    throw Error(absl::StrCat("the remainder of a ", v.TypeName()));
  }
  if (v.is_float()) {
    const double rest = std::fmod(v.number(), static_cast<double>(divisor));
    return rest < 0 ? rest + std::fabs(static_cast<double>(divisor)) : rest;
  }
  if (divisor == -1) return 0.0;
  return static_cast<double>(std::abs(v.integer() % divisor));
}

using TestFunction = bool (*)(const Value& of, const Value& argument);

struct ValueTest {
  const char* name;
  TestFunction function;
  Signature signature = {};
};

constexpr ValueTest kTests[] = {
    {"defined", [](const Value& v, const Value&) { return !v.is_undefined(); }},
    {"undefined",
     [](const Value& v, const Value&) { return v.is_undefined(); }},
    {"none", [](const Value& v, const Value&) { return v.is_none(); }},
    {"boolean", [](const Value& v, const Value&) { return v.is_bool(); }},
    {"true", [](const Value& v,
                const Value&) { return v.is_bool() && v.integer() != 0; }},
    {"false", [](const Value& v,
                 const Value&) { return v.is_bool() && v.integer() == 0; }},
    {"integer",
     [](const Value& v, const Value&) { return v.is_int() || v.is_big(); }},
    {"float", [](const Value& v, const Value&) { return v.is_float(); }},
    {"number",
     [](const Value& v, const Value&) { return v.is_number() || v.is_big(); }},
    {"string", [](const Value& v, const Value&) { return v.is_string(); }},
    {"mapping", [](const Value& v, const Value&) { return v.is_dict(); }},
    {"sequence",
     [](const Value& v, const Value&) {
       return v.is_sequence() || v.is_string() || v.is_dict() ||
              v.is_undefined();
     }},
    {"iterable",
     [](const Value& v, const Value&) {
       return v.is_sequence() || v.is_string() || v.is_dict() ||
              v.is_undefined();
     }},
    {"callable",
     [](const Value& v, const Value&) {
       // jinja2's Undefined has __call__, which raises.
       return v.is_undefined() || (v.is_object() && v.object()->callable());
     }},
    {"escaped", [](const Value&, const Value&) { return false; }},
    {"lower",
     [](const Value& v, const Value&) {
       const std::string text = ToText(v);
       return text == Lower(text) && text != Upper(text);
     }},
    {"upper",
     [](const Value& v, const Value&) {
       const std::string text = ToText(v);
       return text == Upper(text) && text != Lower(text);
     }},
    {"even",
     [](const Value& v, const Value&) { return Remainder(v, 2) == 0.0; }},
    {"odd",
     [](const Value& v, const Value&) { return Remainder(v, 2) == 1.0; }},
    {"divisibleby",
     [](const Value& v, const Value& by) {
       const int64_t divisor = IntegerOf(by, "divisibleby's number");
       if (divisor == 0) throw Error("a division by zero");
       return Remainder(v, divisor) == 0.0;
     },
     {"num", 1}},
    {"eq", &Equal, {"b/", 1}},
    {"==", &Equal, {"b/", 1}},
    {"equalto", &Equal, {"b/", 1}},
    {"ne",
     [](const Value& v, const Value& w) { return !Equal(v, w); },
     {"b/", 1}},
    {"!=",
     [](const Value& v, const Value& w) { return !Equal(v, w); },
     {"b/", 1}},
    {"lt", &Less, {"b/", 1}},
    {"<", &Less, {"b/", 1}},
    {"lessthan", &Less, {"b/", 1}},
    {"gt",
     [](const Value& v, const Value& w) { return Less(w, v); },
     {"b/", 1}},
    {">", [](const Value& v, const Value& w) { return Less(w, v); }, {"b/", 1}},
    {"greaterthan",
     [](const Value& v, const Value& w) { return Less(w, v); },
     {"b/", 1}},
    {"le",
     [](const Value& v, const Value& w) { return Less(v, w) || Equal(v, w); },
     {"b/", 1}},
    {"<=",
     [](const Value& v, const Value& w) { return Less(v, w) || Equal(v, w); },
     {"b/", 1}},
    {"ge",
     [](const Value& v, const Value& w) { return Less(w, v) || Equal(v, w); },
     {"b/", 1}},
    {">=",
     [](const Value& v, const Value& w) { return Less(w, v) || Equal(v, w); },
     {"b/", 1}},
    {"in",
     [](const Value& v, const Value& w) { return Contains(w, v); },
     {"seq", 1}},
    {"sameas",
     [](const Value& v, const Value& w) {
       return v.is_bool() == w.is_bool() && v.is_float() == w.is_float() &&
              Equal(v, w);
     },
     {"other", 1}},
};

const ValueTest* Find(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kTests), std::end(kTests),
                   [&](const ValueTest& test) { return name == test.name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace

bool IsTest(const std::string& name) {
  return name == "filter" || name == "test" || Find(name) != nullptr;
}

bool Interpreter::Test(const std::string& name, const Value& of,
                       const Arguments& arguments) {
  Spend(1);
  if (name == "filter" || name == "test") {
    CheckArguments({}, name, arguments);
    CheckHashable(of);
    if (!of.is_string()) return false;
    return name == "filter" ? IsFilter(of.string()) : IsTest(of.string());
  }
  const auto* const test = Find(name);
  if (test == nullptr) {
    throw Error(absl::StrCat("there is no test `", name, "`"));
  }
  CheckArguments(test->signature, name, arguments);
  const Value argument = !arguments.positional.empty() ? arguments.positional[0]
                         : !arguments.named.empty() ? arguments.named[0].second
                                                    : Value();
  if (argument.is_sequence()) Spend(Length(argument));
  return test->function(of, argument);
}

}  // namespace capstan::jinja
