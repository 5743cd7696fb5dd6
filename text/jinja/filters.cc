// SPDX-License-Identifier: Apache-2.0
//
// jinja2's filters (jinja2/filters.py), without those that make HTML or random
// choices.
#include "text/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/signature.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {
namespace {

// The attribute "a.b.0" of a value.
Value AttributeOf(Interpreter& interpreter, Value of, const Value& path) {
  if (path.is_int()) return interpreter.Item(of, path);
  for (absl::string_view part : absl::StrSplit(ToText(path), '.')) {
    int64_t index = 0;
    of = absl::SimpleAtoi(part, &index)
             ? interpreter.Item(of, Value(index))
             : interpreter.Item(of, Value(std::string(part)));
  }
  return of;
}

// Iterate, counted.
std::vector<Value> ItemsOf(Interpreter& interpreter, const Value& of) {
  std::vector<Value> items = Iterate(of);
  interpreter.Spend(static_cast<int64_t>(items.size()));
  return items;
}

// The same of map, select and reject, to which None is empty, too.
std::vector<Value> ItemsIfAny(Interpreter& interpreter, const Value& of) {
  return of.Truth() ? ItemsOf(interpreter, of) : std::vector<Value>();
}

// What sort, unique, .. compare: the attribute if there is one, in lower case
// unless case_sensitive.
class KeyOf {
 public:
  // `otherwise` is in place of an attribute that isn't there; None: nothing is.
  KeyOf(Interpreter& interpreter, const Value& attribute, bool case_sensitive,
        Value otherwise = Value())
      : interpreter_(interpreter),
        attribute_(attribute),
        case_sensitive_(case_sensitive),
        otherwise_(std::move(otherwise)) {}
  // The key as it is.
  Value Whole(const Value& item) const {
    if (attribute_.is_none()) return item;
    Value found = AttributeOf(interpreter_, item, attribute_);
    return found.is_undefined() && !otherwise_.is_none() ? otherwise_ : found;
  }
  Value operator()(const Value& item) const {
    if (attribute_.is_string() && absl::StrContains(attribute_.string(), ',')) {
      std::vector<Value> keys;
      for (absl::string_view one : absl::StrSplit(attribute_.string(), ',')) {
        keys.push_back(
            Plain(AttributeOf(interpreter_, item, Value(std::string(one)))));
      }
      return Value::List(std::move(keys));
    }
    return Plain(Whole(item));
  }

 private:
  Value Plain(Value value) const {
    if (!case_sensitive_ && value.is_string()) return Lower(value.string());
    return value;
  }

  Interpreter& interpreter_;
  const Value attribute_;
  const bool case_sensitive_;
  const Value otherwise_;
};

void SortBy(const KeyOf& key, bool reverse, std::vector<Value>* items) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : *items) keyed.emplace_back(key(item), item);
  std::stable_sort(
      keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
        if (Equal(a.first, b.first)) return false;  // two that are undefined
        return reverse ? Less(b.first, a.first) : Less(a.first, b.first);
      });
  for (size_t i = 0; i < keyed.size(); ++i) (*items)[i] = keyed[i].second;
}

// ---- Filters of numbers.

Value AbsFilter(Interpreter&, const Value& of, const Arguments&) {
  if (of.is_big()) {
    return IntegerOfText(absl::StripPrefix(of.digits(), "-"));
  }
  if (!of.is_number()) throw Error("abs wants a number");
  if (of.is_float()) return std::fabs(of.number());
  if (of.integer() == std::numeric_limits<int64_t>::min()) {
    throw Error("an integer exceeds 64 bits");
  }
  return std::abs(of.integer());
}

Value IntFilter(Interpreter&, const Value& of, const Arguments& given) {
  const Value otherwise = given.Get(0, "default", 0);
  const int64_t base = IntegerOf(given.Get(1, "base", 10), "int's base");
  if (of.is_int() || of.is_bool()) return of.integer();
  if (of.is_big()) return of;
  if (of.is_undefined()) throw Error(of.undefined());
  double number = of.is_float() ? of.number() : 0.0;
  if (of.is_string()) {
    const std::string text = Stripped(of.string(), nullptr, true, true);
    int64_t integer = 0;
    if (base == 10 && absl::SimpleAtoi(text, &integer)) return integer;
    if (base == 16 && absl::SimpleHexAtoi(text, &integer)) return integer;
    const bool hex =
        absl::StrContains(text, 'x') || absl::StrContains(text, 'X');
    if (base != 10 || hex || !absl::SimpleAtod(text, &number)) return otherwise;
  } else if (!of.is_float()) {
    return otherwise;
  }
  if (!std::isfinite(number) || std::fabs(number) > 9e18) return otherwise;
  return static_cast<int64_t>(number);
}

Value FloatFilter(Interpreter&, const Value& of, const Arguments& given) {
  double number = 0.0;
  if (of.is_undefined()) throw Error(of.undefined());
  if (of.is_number() || of.is_big()) return of.number();
  if (of.is_string() &&
      absl::SimpleAtod(Stripped(of.string(), nullptr, true, true), &number)) {
    return number;
  }
  return given.Get(0, "default", 0.0);
}

Value RoundFilter(Interpreter&, const Value& of, const Arguments& given) {
  if (!of.is_number()) throw Error("round wants a number");
  const int64_t digits =
      IntegerOf(given.Get(0, "precision", 0), "round's precision");
  const std::string method = ToText(given.Get(1, "method", "common"));
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double value = of.number();
  if (method == "ceil") return std::ceil(value * scale) / scale;
  if (method == "floor") return std::floor(value * scale) / scale;
  if (method != "common") throw Error("round's method isn't known");
  if (!of.is_float() && digits >= 0) return of.integer();
  if (digits < 0 || digits > 300) {
    return std::nearbyint(value * scale) / scale;
  }
  // As Python: to the nearest of that many digits by the exact value.
  double rounded = 0.0;
  if (!absl::SimpleAtod(
          absl::StrFormat("%.*f", static_cast<int>(digits), value), &rounded)) {
    return value;
  }
  return rounded;
}

// ---- Filters of lists.

Value LengthFilter(Interpreter&, const Value& of, const Arguments&) {
  return Length(of);
}
Value FirstFilter(Interpreter& interpreter, const Value& of, const Arguments&) {
  const std::vector<Value> items = ItemsOf(interpreter, of);
  if (items.empty()) return Undefined{"there is no first item"};
  return items.front();
}
Value LastFilter(Interpreter& interpreter, const Value& of, const Arguments&) {
  const std::vector<Value> items = ItemsOf(interpreter, of);
  if (items.empty()) return Undefined{"there is no last item"};
  return items.back();
}
Value ListFilter(Interpreter& interpreter, const Value& of, const Arguments&) {
  return Value::List(ItemsOf(interpreter, of));
}
Value ReverseFilter(Interpreter& interpreter, const Value& of,
                    const Arguments&) {
  std::vector<Value> items = ItemsOf(interpreter, of);
  std::reverse(items.begin(), items.end());
  if (!of.is_string()) return Value::List(std::move(items));
  std::string text;
  for (const Value& c : items) text += c.string();
  return text;
}
Value JoinFilter(Interpreter& interpreter, const Value& of,
                 const Arguments& given) {
  const std::string sign = ToText(given.Get(0, "d", ""));
  const Value attribute = given.Get(1, "attribute", Value());
  std::string text;
  bool first = true;
  for (const Value& item : ItemsOf(interpreter, of)) {
    const std::string one = ToText(
        attribute.is_none() ? item : AttributeOf(interpreter, item, attribute));
    interpreter.SpendText(one.size() + sign.size());
    if (!first) text += sign;
    first = false;
    text += one;
  }
  return text;
}
Value SumFilter(Interpreter& interpreter, const Value& of,
                const Arguments& given) {
  const Value attribute = given.Get(0, "attribute", Value());
  Value sum = given.Get(1, "start", 0);
  if (sum.is_string()) throw Error("sum can't add texts");
  for (const Value& item : ItemsOf(interpreter, of)) {
    sum = interpreter.Binary(
        "+", sum,
        attribute.is_none() ? item : AttributeOf(interpreter, item, attribute));
  }
  return sum;
}
Value SortFilter(Interpreter& interpreter, const Value& of,
                 const Arguments& given) {
  std::vector<Value> items = ItemsOf(interpreter, of);
  SortBy(KeyOf(interpreter, given.Get(2, "attribute", Value()),
               given.Get(1, "case_sensitive", false).Truth()),
         IntegerOf(given.Get(0, "reverse", false), "sort's reverse") != 0,
         &items);
  return Value::List(std::move(items));
}
Value DictSortFilter(Interpreter& interpreter, const Value& of,
                     const Arguments& given) {
  if (!of.is_dict()) throw Error("dictsort wants a dict");
  std::vector<Value> items;
  for (const auto& [key, value] : of.dict()->items) {
    items.push_back(Value::Tuple({key, value}));
  }
  interpreter.Spend(static_cast<int64_t>(items.size()));
  const Value by = given.Get(1, "by", "key");
  const bool by_value = by.is_string() && by.string() == "value";
  if (!by_value && !(by.is_string() && by.string() == "key")) {
    throw Error("dictsort is by \"key\" or by \"value\"");
  }
  SortBy(KeyOf(interpreter, Value(by_value ? 1 : 0),
               given.Get(0, "case_sensitive", false).Truth()),
         given.Get(2, "reverse", false).Truth(), &items);
  return Value::List(std::move(items));
}
Value UniqueFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given) {
  const KeyOf key(interpreter, given.Get(1, "attribute", Value()),
                  given.Get(0, "case_sensitive", false).Truth());
  std::vector<Value> kept;
  std::vector<Value> seen;
  for (const Value& item : ItemsOf(interpreter, of)) {
    Value mine = key(item);
    CheckHashable(mine);
    interpreter.Spend(static_cast<int64_t>(seen.size()));
    const bool known =
        std::any_of(seen.begin(), seen.end(),
                    [&](const Value& other) { return Equal(mine, other); });
    if (known) continue;
    seen.push_back(std::move(mine));
    kept.push_back(item);
  }
  return Value::List(std::move(kept));
}
template <bool largest>
Value ExtremeFilter(Interpreter& interpreter, const Value& of,
                    const Arguments& given) {
  const KeyOf key(interpreter, given.Get(1, "attribute", Value()),
                  given.Get(0, "case_sensitive", false).Truth());
  const std::vector<Value> items = ItemsOf(interpreter, of);
  if (items.empty()) return Undefined{"there is no item"};
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    const Value a = key(items[i]);
    const Value b = key(items[best]);
    if (largest ? Less(b, a) : Less(a, b)) best = i;
  }
  return items[best];
}
Value GroupByFilter(Interpreter& interpreter, const Value& of,
                    const Arguments& given) {
  const Value attribute = given.Get(0, "attribute", Value());
  const bool case_sensitive = given.Get(2, "case_sensitive", false).Truth();
  const KeyOf key(interpreter, attribute, case_sensitive,
                  given.Get(1, "default", Value()));
  std::vector<Value> items = ItemsOf(interpreter, of);
  for (const Value& item : items) {
    const Value own = items.size() > 1 ? key(item) : Value();
    if (own.is_undefined()) throw Error(own.undefined());
  }
  SortBy(key, /*reverse=*/false, &items);
  std::vector<std::pair<Value, std::vector<Value>>> groups;
  for (Value& item : items) {
    const Value mine = key(item);
    if (groups.empty() || !Equal(key(groups.back().second[0]), mine)) {
      groups.emplace_back(key.Whole(item), std::vector<Value>());
    }
    groups.back().second.push_back(std::move(item));
  }
  std::vector<Value> made;
  for (auto& [name, members] : groups) {
    made.push_back(Value::Tuple({name, Value::List(std::move(members))}));
  }
  return Value::List(std::move(made));
}
Value BatchFilter(Interpreter& interpreter, const Value& of,
                  const Arguments& given) {
  const int64_t size = IntegerOf(given.Get(0, "linecount", 1), "batch's size");
  const Value fill = given.Get(1, "fill_with", Value());
  if (size < 1 || size > 100000) throw Error("batch's size is 1 to 100,000");
  std::vector<Value> rows;
  std::vector<Value> row;
  for (Value& item : ItemsOf(interpreter, of)) {
    row.push_back(std::move(item));
    if (static_cast<int64_t>(row.size()) == size) {
      rows.push_back(Value::List(std::exchange(row, {})));
    }
  }
  if (!row.empty()) {
    if (!fill.is_none()) row.resize(static_cast<size_t>(size), fill);
    interpreter.Spend(static_cast<int64_t>(row.size()));
    rows.push_back(Value::List(std::move(row)));
  }
  return Value::List(std::move(rows));
}
Value SliceFilter(Interpreter& interpreter, const Value& of,
                  const Arguments& given) {
  const int64_t slices = IntegerOf(given.Get(0, "slices", 1), "slice's number");
  const Value fill = given.Get(1, "fill_with", Value());
  if (slices < 1 || slices > 100000)
    throw Error("slice's number is 1 to 100,000");
  const std::vector<Value> items = ItemsOf(interpreter, of);
  const auto count = static_cast<int64_t>(items.size());
  const int64_t each = count / slices;
  const int64_t more = count % slices;
  std::vector<Value> rows;
  interpreter.Spend(slices);
  for (int64_t k = 0, at = 0; k < slices; ++k) {
    const int64_t size = each + (k < more ? 1 : 0);
    std::vector<Value> row(items.begin() + at, items.begin() + at + size);
    if (!fill.is_none() && k >= more) row.push_back(fill);
    rows.push_back(Value::List(std::move(row)));
    at += size;
  }
  return Value::List(std::move(rows));
}

// The rest of the arguments after the first `count`.
Arguments Rest(const Arguments& given, size_t count) {
  Arguments rest = given;
  rest.positional.erase(
      rest.positional.begin(),
      rest.positional.begin() + std::min(count, rest.positional.size()));
  return rest;
}

Value MapFilter(Interpreter& interpreter, const Value& of,
                const Arguments& given) {
  std::vector<Value> made;
  const Value* const attribute = given.Find(1000, "attribute");
  for (const Value& item : ItemsIfAny(interpreter, of)) {
    if (attribute != nullptr) {
      Value one = AttributeOf(interpreter, item, *attribute);
      if (one.is_undefined()) one = given.Get(1000, "default", one);
      made.push_back(std::move(one));
    } else if (!given.positional.empty()) {
      made.push_back(interpreter.Filter(ToText(given.positional[0]), item,
                                        Rest(given, 1)));
    } else {
      throw Error("map wants a filter's name or an attribute");
    }
  }
  return Value::List(std::move(made));
}

template <bool keep, bool attribute>
Value SelectFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given) {
  constexpr size_t kTest = attribute ? 1 : 0;
  if (attribute && given.positional.empty()) {
    throw Error("selectattr and rejectattr want an attribute");
  }
  std::vector<Value> kept;
  for (const Value& item : ItemsIfAny(interpreter, of)) {
    const Value tested =
        attribute ? AttributeOf(interpreter, item, given.positional[0]) : item;
    const bool holds = given.positional.size() > kTest
                           ? interpreter.Test(ToText(given.positional[kTest]),
                                              tested, Rest(given, kTest + 1))
                           : tested.Truth();
    if (holds == keep) kept.push_back(item);
  }
  return Value::List(std::move(kept));
}

Value ItemsFilter(Interpreter& interpreter, const Value& of, const Arguments&) {
  if (of.is_undefined()) return Value::List({});
  if (!of.is_dict()) throw Error("items wants a dict");
  return interpreter.Call(interpreter.Attribute(of, "items"), {});
}

// ---- Filters of any value.

Value DefaultFilter(Interpreter&, const Value& of, const Arguments& given) {
  const bool by_truth = given.Get(1, "boolean", false).Truth();
  const bool missing = of.is_undefined() || (by_truth && !of.Truth());
  return missing ? given.Get(0, "default_value", "") : of;
}
Value AttrFilter(Interpreter& interpreter, const Value& of,
                 const Arguments& given) {
  if (!given.Get(0, "name", "").is_string()) {
    throw Error("attr wants an attribute's name");
  }
  if (of.is_dict()) {
    // Not a key, unlike a dot.
    return Undefined{"a dict has no such attribute"};
  }
  return interpreter.Attribute(of, ToText(given.Get(0, "name", "")));
}
Value SafeFilter(Interpreter&, const Value& of, const Arguments&) {
  return Value::Markup(ToText(of));
}

struct Filter {
  const char* name;
  FilterFunction function;
  Signature signature;
};

constexpr Filter kFilters[] = {
    {"abs", &AbsFilter, {}},
    {"attr", &AttrFilter, {"name", 1}},
    {"batch", &BatchFilter, {"linecount,fill_with", 1}},
    {"capitalize", &CapitalizeFilter, {}},
    {"center", &CenterFilter, {"width", 0}},
    {"count", &LengthFilter, {}},
    {"d", &DefaultFilter, {"default_value,boolean", 0}},
    {"default", &DefaultFilter, {"default_value,boolean", 0}},
    {"dictsort", &DictSortFilter, {"case_sensitive,by,reverse", 0}},
    {"e", &EscapeFilter, {}},
    {"escape", &EscapeFilter, {}},
    {"first", &FirstFilter, {}},
    {"float", &FloatFilter, {"default", 0}},
    {"forceescape", &EscapeFilter, {}},
    {"format", &FormatFilter, {"*"}},
    {"groupby", &GroupByFilter, {"attribute,default,case_sensitive", 1}},
    {"indent", &IndentFilter, {"width,first,blank", 0}},
    {"int", &IntFilter, {"default,base", 0}},
    {"items", &ItemsFilter, {}},
    {"join", &JoinFilter, {"d,attribute", 0}},
    {"last", &LastFilter, {}},
    {"length", &LengthFilter, {}},
    {"list", &ListFilter, {}},
    {"lower", &LowerFilter, {}},
    {"map", &MapFilter, {"*"}},
    {"max", &ExtremeFilter<true>, {"case_sensitive,attribute", 0}},
    {"min", &ExtremeFilter<false>, {"case_sensitive,attribute", 0}},
    {"reject", &SelectFilter<false, false>, {"*"}},
    {"rejectattr", &SelectFilter<false, true>, {"*"}},
    {"replace", &ReplaceFilter, {"old,new,count", 2}},
    {"reverse", &ReverseFilter, {}},
    {"round", &RoundFilter, {"precision,method", 0}},
    {"safe", &SafeFilter, {}},
    {"select", &SelectFilter<true, false>, {"*"}},
    {"selectattr", &SelectFilter<true, true>, {"*"}},
    {"slice", &SliceFilter, {"slices,fill_with", 1}},
    {"sort", &SortFilter, {"reverse,case_sensitive,attribute", 0}},
    {"string", &StringFilter, {}},
    {"sum", &SumFilter, {"attribute,start", 0}},
    {"title", &TitleFilter, {}},
    {"tojson", &ToJsonFilter, {"ensure_ascii,indent,separators,sort_keys", 0}},
    {"trim", &TrimFilter, {"chars", 0}},
    {"truncate", &TruncateFilter, {"length,killwords,end,leeway", 0}},
    {"unique", &UniqueFilter, {"case_sensitive,attribute", 0}},
    {"upper", &UpperFilter, {}},
    {"urlencode", &UrlEncodeFilter, {}},
    {"wordcount", &WordCountFilter, {}},
};

const Filter* Find(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kFilters), std::end(kFilters),
                   [&](const Filter& filter) { return name == filter.name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace

int64_t IntegerOf(const Value& value, const char* what) {
  if (!value.is_int() && !value.is_bool()) {
    throw Error(
        absl::StrCat(what, " is to be an integer, not a ", value.TypeName()));
  }
  return value.integer();
}

bool IsFilter(const std::string& name) { return Find(name) != nullptr; }

Value Interpreter::Filter(const std::string& name, const Value& of,
                          const Arguments& arguments) {
  const auto* const filter = Find(name);
  if (filter == nullptr) {
    throw Error(absl::StrCat("there is no filter `", name, "`"));
  }
  CheckArguments(filter->signature, name, arguments);
  Spend(1);
  if (of.is_string()) Spend(static_cast<int64_t>(of.string().size() >> 6));
  Value made = filter->function(*this, of, arguments);
  if (made.is_string()) SpendText(made.string().size());
  return made;
}

}  // namespace capstan::jinja
