// SPDX-License-Identifier: Apache-2.0
//
// jinja2's tests, as in `x is defined` (jinja2/tests.py).
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "text/jinja/builtin.h"
#include "text/jinja/strings.h"

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

bool IsDivisible(const Value& v, const Value& by) {
  if (!by.is_int() && !by.is_bool()) {
    throw Error(
        absl::StrCat("divisibleby wants an integer, not a ", by.TypeName()));
  }
  if (by.integer() == 0) throw Error("a division by zero");
  return Remainder(v, by.integer()) == 0.0;
}

bool IsIterable(const Value& v) {
  return v.is_sequence() || v.is_string() || v.is_dict() || v.is_undefined();
}

bool IsCallable(const Value& v) {
  // jinja2's Undefined has __call__, which raises.
  return v.is_undefined() || (v.is_object() && v.object()->callable());
}

// A text in which upper and lower case differ, and which is in one of them.
bool IsCased(const Value& v, bool upper) {
  const std::string text = ToText(v);
  return text == (upper ? Upper : Lower)(text) &&
         text != (upper ? Lower : Upper)(text);
}

bool IsSame(const Value& v, const Value& w) {
  return v.is_bool() == w.is_bool() && v.is_float() == w.is_float() &&
         Equal(v, w);
}

bool LessOrEqual(const Value& v, const Value& w) {
  return Less(v, w) || Equal(v, w);
}

using V = const Value&;

constexpr struct {
  const char* name;
  bool (*holds)(V value);
} kTests[] = {
    {"defined", [](V v) { return !v.is_undefined(); }},
    {"undefined", [](V v) { return v.is_undefined(); }},
    {"none", [](V v) { return v.is_none(); }},
    {"boolean", [](V v) { return v.is_bool(); }},
    {"true", [](V v) { return v.is_bool() && v.integer() != 0; }},
    {"false", [](V v) { return v.is_bool() && v.integer() == 0; }},
    {"integer", [](V v) { return v.is_int() || v.is_big(); }},
    {"float", [](V v) { return v.is_float(); }},
    {"number", [](V v) { return v.is_number() || v.is_big(); }},
    {"string", [](V v) { return v.is_string(); }},
    {"mapping", [](V v) { return v.is_dict(); }},
    {"sequence", IsIterable},
    {"iterable", IsIterable},
    {"callable", IsCallable},
    {"escaped", [](V) { return false; }},
    {"lower", [](V v) { return IsCased(v, /*upper=*/false); }},
    {"upper", [](V v) { return IsCased(v, /*upper=*/true); }},
    {"even", [](V v) { return Remainder(v, 2) == 0.0; }},
    {"odd", [](V v) { return Remainder(v, 2) == 1.0; }},
    {"filter", [](V v) { return v.is_string() && IsFilter(v.string()); }},
    {"test", [](V v) { return v.is_string() && IsTest(v.string()); }},
};

// Tests of a value and an argument; "b/" are Python's operators, which know no
// names.
constexpr struct {
  const char* name;
  bool (*holds)(V value, V other);
  const char* parameter = "b/";
} kComparisons[] = {
    {"eq", Equal},
    {"==", Equal},
    {"equalto", Equal},
    {"ne", [](V v, V w) { return !Equal(v, w); }},
    {"!=", [](V v, V w) { return !Equal(v, w); }},
    {"lt", Less},
    {"<", Less},
    {"lessthan", Less},
    {"gt", [](V v, V w) { return Less(w, v); }},
    {">", [](V v, V w) { return Less(w, v); }},
    {"greaterthan", [](V v, V w) { return Less(w, v); }},
    {"le", LessOrEqual},
    {"<=", LessOrEqual},
    {"ge", [](V v, V w) { return LessOrEqual(w, v); }},
    {">=", [](V v, V w) { return LessOrEqual(w, v); }},
    {"in", [](V v, V w) { return Contains(w, v); }, "seq"},
    {"sameas", IsSame, "other"},
    {"divisibleby", IsDivisible, "num"},
};

template <typename Table>
auto FindTest(const Table& table, absl::string_view name) {
  for (const auto& one : table) {
    if (name == one.name) return &one;
  }
  return static_cast<decltype(&table[0])>(nullptr);
}

}  // namespace

bool IsTest(absl::string_view name) {
  return FindTest(kTests, name) != nullptr ||
         FindTest(kComparisons, name) != nullptr;
}

bool Interpreter::Test(const std::string& name, const Value& of,
                       const Arguments& arguments) {
  Spend(1);
  if (const auto* const test = FindTest(kTests, name)) {
    Bind(arguments, {}, name);
    return test->holds(of);
  }
  const auto* const comparison = FindTest(kComparisons, name);
  if (comparison == nullptr) {
    throw Error(absl::StrCat("there is no test `", name, "`"));
  }
  const Builtin function = {comparison->name, nullptr, comparison->parameter,
                            1};
  const jinja::Call call(function, *this, of, arguments);
  const Value& other = arguments.positional.empty() ? arguments.named[0].second
                                                    : arguments.positional[0];
  if (other.is_sequence()) Spend(Length(other));
  return comparison->holds(of, other);
}

}  // namespace capstan::jinja
