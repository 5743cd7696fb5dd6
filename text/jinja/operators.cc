// SPDX-License-Identifier: Apache-2.0
//
// What + - * / // % ** ~ and slices do, as in Python.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/strings.h"

namespace capstan::jinja {

namespace {

// Python's range of a slice over `length` items: indices begin, begin + step,
// .. before (after, if step < 0) end.
struct SliceRange {
  int64_t begin;
  int64_t end;
  int64_t step;
};

SliceRange RangeOf(const Value& begin, const Value& end, const Value& step,
                   int64_t length) {
  const auto number = [](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    if (!value.is_int() && !value.is_bool()) {
      throw Error(
          absl::StrCat("a slice wants integers, not a ", value.TypeName()));
    }
    return value.integer();
  };
  SliceRange range;
  range.step = number(step, 1);
  if (range.step == 0) throw Error("a slice's step can't be 0");
  if (range.step == std::numeric_limits<int64_t>::min()) ++range.step;
  const bool back = range.step < 0;
  const auto clamped = [&](int64_t at) {
    if (at < 0) at += length;
    return std::clamp<int64_t>(at, back ? -1 : 0, back ? length - 1 : length);
  };
  range.begin =
      begin.is_none() ? (back ? length - 1 : 0) : clamped(number(begin, 0));
  range.end = end.is_none() ? (back ? -1 : length) : clamped(number(end, 0));
  return range;
}

[[noreturn]] void FailTooLarge() { throw Error("an integer exceeds 64 bits"); }

// -1 for a negative, to floor towards minus infinity as Python does.
int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value IntegerPower(int64_t base, int64_t exponent) {
  int64_t result = 1;
  bool fits = true;
  while (exponent > 0 && fits) {
    if ((exponent & 1) != 0) {
      fits &= !__builtin_mul_overflow(result, base, &result);
    }
    exponent >>= 1;
    if (exponent > 0) fits &= !__builtin_mul_overflow(base, base, &base);
  }
  if (!fits) FailTooLarge();
  return result;
}

// Where Python raises, or has complex numbers, it is an Error.
Value FloatPower(double base, double exponent) {
  if (base == 0.0 && exponent < 0.0) throw Error("a division by zero");
  const double power = std::pow(base, exponent);
  if (std::isfinite(base) && std::isfinite(exponent) && !std::isfinite(power)) {
    throw Error("a power is no number, or too large");
  }
  return power;
}

Value IntegerOperation(const std::string& sign, int64_t a, int64_t b) {
  int64_t result = 0;
  if (sign == "+" || sign == "-" || sign == "*") {
    const bool exceeds = sign == "+"   ? __builtin_add_overflow(a, b, &result)
                         : sign == "-" ? __builtin_sub_overflow(a, b, &result)
                                       : __builtin_mul_overflow(a, b, &result);
    if (exceeds) FailTooLarge();
    return result;
  }
  if (sign == "**") {
    if (b < 0)
      return FloatPower(static_cast<double>(a), static_cast<double>(b));
    return IntegerPower(a, b);
  }
  if (b == 0) throw Error("a division by zero");
  if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return IntegerOperation(sign == "%" ? "*" : "-", 0, a);
  const int64_t quotient = FloorDivide(a, b);
  return sign == "//" ? quotient : a - quotient * b;
}

Value FloatOperation(const std::string& sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") return FloatPower(a, b);
  if (b == 0.0) throw Error("a division by zero");
  if (sign == "/") return a / b;
  const double quotient = std::floor(a / b);
  return sign == "//" ? quotient : a - quotient * b;
}

}  // namespace

Value Interpreter::EvaluateSlice(const Value& of, const Expression& slice,
                                 const ScopePtr& scope) {
  const auto part = [&](size_t i) {
    return slice.parts[i] == nullptr ? Value()
                                     : Evaluate(*slice.parts[i], scope);
  };
  if (of.is_undefined()) throw Error(absl::StrCat(of.undefined()));
  if (!of.is_string() && !of.is_sequence()) {
    throw Error(absl::StrCat("a ", of.TypeName(), " has no slices"));
  }
  const std::vector<Value> items = Iterate(of);
  const auto length = static_cast<int64_t>(items.size());
  Spend(length);
  const SliceRange range = RangeOf(part(0), part(1), part(2), length);
  std::vector<Value> chosen;
  for (int64_t i = range.begin;
       range.step > 0 ? i < range.end : i > range.end;) {
    chosen.push_back(items[i]);
    if (__builtin_add_overflow(i, range.step, &i)) break;
  }
  if (of.is_string()) {
    std::string text;
    for (const Value& one : chosen) text += one.string();
    SpendText(text.size());
    return text;
  }
  return of.sequence()->tuple ? Value::Tuple(std::move(chosen))
                              : Value::List(std::move(chosen));
}

Value Interpreter::Binary(const std::string& sign, const Value& a,
                          const Value& b) {
  if (sign == "~") {
    std::string text = ToText(a) + ToText(b);
    SpendText(text.size());
    return text;
  }
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float()
               ? FloatOperation(sign, a.number(), b.number())
               : IntegerOperation(sign, a.integer(), b.integer());
  }
  for (const Value* const one : {&a, &b}) {
    if (one->is_undefined()) throw Error(one->undefined());
  }
  if ((a.is_big() && (b.is_big() || b.is_number())) ||
      (b.is_big() && a.is_number())) {
    if (!a.is_float() && !b.is_float()) FailTooLarge();
    return FloatOperation(sign, a.number(), b.number());
  }
  if (sign == "%" && a.is_string()) {
    const bool many = b.sequence() != nullptr && b.sequence()->tuple;
    std::string text =
        Percent(a.string(), many ? b.sequence()->items : std::vector<Value>{b},
                b.dict());
    SpendText(text.size());
    return text;
  }
  if (sign == "+" && a.is_string() && b.is_string()) {
    // Unlike ~, which joins plain texts without autoescape.
    if (a.is_markup() || b.is_markup()) {
      return Value::Markup(Escaped(a) + Escaped(b));
    }
    SpendText(a.string().size() + b.string().size());
    return a.string() + b.string();
  }
  if (sign == "+" && a.is_sequence() && b.is_sequence() &&
      a.sequence()->tuple == b.sequence()->tuple) {
    std::vector<Value> items = a.sequence()->items;
    items.insert(items.end(), b.sequence()->items.begin(),
                 b.sequence()->items.end());
    Spend(static_cast<int64_t>(items.size()));
    return a.sequence()->tuple ? Value::Tuple(std::move(items))
                               : Value::List(std::move(items));
  }
  if (sign == "*" && (a.is_number() || b.is_number())) {
    const Value& many = a.is_number() ? a : b;
    const Value& of = a.is_number() ? b : a;
    if (!many.is_float() && (of.is_string() || of.is_sequence())) {
      const int64_t times = std::max<int64_t>(0, many.integer());
      const int64_t size = of.is_string()
                               ? static_cast<int64_t>(of.string().size())
                               : Length(of) * 16;
      if (size > 0 && times > limits_.text_bytes / size) {
        throw LimitError("the template makes a value that is too large");
      }
      SpendText(static_cast<size_t>(size * times));
      std::string text;
      std::vector<Value> items;
      for (int64_t i = 0; i < times && size > 0; ++i) {
        if (of.is_string()) {
          text += of.string();
        } else {
          items.insert(items.end(), of.sequence()->items.begin(),
                       of.sequence()->items.end());
        }
      }
      if (of.is_string()) return text;
      return of.sequence()->tuple ? Value::Tuple(std::move(items))
                                  : Value::List(std::move(items));
    }
  }
  throw Error(absl::StrCat("a ", a.TypeName(), " ", sign, " a ", b.TypeName(),
                           " isn't possible"));
}

}  // namespace capstan::jinja
