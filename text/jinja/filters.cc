// SPDX-License-Identifier: Apache-2.0
//
// jinja2's filters (jinja2/filters.py) that chat templates use.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "text/jinja/builtin.h"
#include "text/jinja/strings.h"

namespace capstan::jinja {
namespace {

// The attribute "a.b.0" of a value.
Value AttributeOf(Interpreter& interpreter, Value of, const Value& path) {
  if (path.is_int()) return interpreter.Item(of, path);
  for (absl::string_view part : absl::StrSplit(ToText(path), '.')) {
    int64_t index = 0;
    of = interpreter.Item(of, absl::SimpleAtoi(part, &index)
                                  ? Value(index)
                                  : Value(std::string(part)));
  }
  return of;
}

// The item, or its attribute if there is one.
Value AttributeOrItem(const Call& call, const Value& item) {
  const Value* const attribute = call.Find("attribute");
  return attribute == nullptr ? item
                              : AttributeOf(call.interpreter, item, *attribute);
}

std::vector<Value> ItemsOf(const Call& call) {
  std::vector<Value> items = Iterate(call.self);
  call.interpreter.Spend(static_cast<int64_t>(items.size()));
  return items;
}

// The same of map, select and reject, to which None is empty, too.
std::vector<Value> ItemsIfAny(const Call& call) {
  return call.self.Truth() ? ItemsOf(call) : std::vector<Value>();
}

// What sort, unique, .. compare: the attribute if there is one, in lower case
// unless case_sensitive.
class KeyOf {
 public:
  KeyOf(const Call& call, Value attribute)
      : call_(call),
        attribute_(std::move(attribute)),
        case_sensitive_(call.Truth("case_sensitive")) {
    if (absl::StrContains(ToText(attribute_), ',')) {
      throw Error("several attributes, with commas, aren't supported");
    }
  }
  explicit KeyOf(const Call& call) : KeyOf(call, call.Get("attribute", {})) {}

  // The key as it is, or the filter's default.
  Value Whole(const Value& item) const {
    if (attribute_.is_none()) return item;
    Value found = AttributeOf(call_.interpreter, item, attribute_);
    const Value* const otherwise = call_.Find("default");
    return found.is_undefined() && otherwise != nullptr ? *otherwise : found;
  }
  Value operator()(const Value& item) const {
    Value key = Whole(item);
    if (!case_sensitive_ && key.is_string()) return Lower(key.string());
    return key;
  }

 private:
  const Call& call_;
  const Value attribute_;
  const bool case_sensitive_;
};

Value Sorted(std::vector<Value> items, const KeyOf& key, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) keyed.emplace_back(key(item), item);
  std::stable_sort(
      keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
        if (Equal(a.first, b.first)) return false;  // two that are undefined
        return reverse ? Less(b.first, a.first) : Less(a.first, b.first);
      });
  for (size_t i = 0; i < keyed.size(); ++i) items[i] = keyed[i].second;
  return Value::List(std::move(items));
}

// ---- Filters of numbers.

Value Abs(const Call& call) {
  const Value& of = call.self;
  if (of.is_big()) return IntegerOfText(absl::StripPrefix(of.digits(), "-"));
  if (!of.is_number()) throw Error("abs wants a number");
  if (of.is_float()) return std::fabs(of.number());
  if (of.integer() == std::numeric_limits<int64_t>::min()) {
    throw Error("an integer exceeds 64 bits");
  }
  return std::abs(of.integer());
}

Value Int(const Call& call) {
  const Value& of = call.self;
  const Value otherwise = call.Get("default", 0);
  const int64_t base = call.Integer("base", 10);
  if (of.is_int() || of.is_bool()) return of.integer();
  if (of.is_big()) return of;
  if (of.is_undefined()) throw Error(of.undefined());
  double number = of.is_float() ? of.number() : 0.0;
  if (of.is_string()) {
    const absl::string_view text = Stripped(of.string());
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

Value Float(const Call& call) {
  const Value& of = call.self;
  double number = 0.0;
  if (of.is_undefined()) throw Error(of.undefined());
  if (of.is_number() || of.is_big()) return of.number();
  if (of.is_string() && absl::SimpleAtod(Stripped(of.string()), &number)) {
    return number;
  }
  return call.Get("default", 0.0);
}

Value Round(const Call& call) {
  const Value& of = call.self;
  if (!of.is_number()) throw Error("round wants a number");
  const int64_t digits = call.Integer("precision", 0);
  const std::string method = ToText(call.Get("method", "common"));
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
  double rounded = value;
  const auto text = absl::StrFormat("%.*f", static_cast<int>(digits), value);
  return absl::SimpleAtod(text, &rounded) ? rounded : value;
}

// ---- Filters of texts.

Value Replace(const Call& call) {
  return Replaced(
      call.interpreter, ToText(call.self), ToText(call.Get("old", "")),
      ToText(call.Get("new", "")),
      call.Find("count") == nullptr ? -1 : call.Integer("count", -1));
}

Value Trim(const Call& call) {
  if (call.Find("chars") != nullptr) call.Text("chars");
  return std::string(Stripped(ToText(call.self), call.Find("chars")));
}

Value FormatFilter(const Call& call) {
  const Arguments& given = call.given;
  Dict names;
  for (const auto& [name, value] : given.named) names.Set(name, value);
  if (!given.positional.empty() && !given.named.empty()) {
    throw Error("format takes arguments by place or by name, not both");
  }
  return Percent(ToText(call.self), given.positional,
                 given.named.empty() ? nullptr : &names);
}

Value Indent(const Call& call) {
  const Value width = call.Get("width", 4);
  std::string space;
  if (width.is_string()) {
    space = width.string();
  } else {
    const int64_t columns = call.Integer("width", 4);
    if (columns > 1000) throw LimitError("indent's width exceeds 1,000");
    space.assign(static_cast<size_t>(std::max<int64_t>(0, columns)), ' ');
  }
  if (!call.self.is_string()) throw Error("indent wants a text");
  const std::vector<absl::string_view> lines =
      absl::StrSplit(call.self.string(), '\n');
  call.interpreter.SpendText(call.self.string().size() +
                             lines.size() * space.size());
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    const bool indents =
        i == 0 ? call.Truth("first") : !lines[i].empty() || call.Truth("blank");
    absl::StrAppend(&out, indents ? space : "", lines[i]);
  }
  return out;
}

// transformers' tojson(x, ensure_ascii=False, indent=None, separators=None,
// sort_keys=False).
Value JsonFilter(const Call& call) {
  JsonFormat format;
  if (call.Find("indent") != nullptr) {
    const int64_t columns = call.Integer("indent", -1);
    if (columns > 100) throw LimitError("tojson's indent exceeds 100");
    format.indent = static_cast<int>(columns);
    format.item_separator = ",";
  }
  if (const Value* const separators = call.Find("separators")) {
    const std::vector<Value> both = Iterate(*separators);
    if (both.size() != 2) throw Error("tojson's separators are two texts");
    format.item_separator = ToText(both[0]);
    format.key_separator = ToText(both[1]);
  }
  format.sort_keys = call.Truth("sort_keys");
  format.ensure_ascii = call.Truth("ensure_ascii");
  return ToJson(call.self, format);
}

// ---- Filters of lists.

Value First(const Call& call) {
  const std::vector<Value> items = ItemsOf(call);
  return items.empty() ? Undefined{"there is no first item"} : items.front();
}

Value Last(const Call& call) {
  const std::vector<Value> items = ItemsOf(call);
  return items.empty() ? Undefined{"there is no last item"} : items.back();
}

Value Reverse(const Call& call) {
  std::vector<Value> items = ItemsOf(call);
  std::reverse(items.begin(), items.end());
  if (!call.self.is_string()) return Value::List(std::move(items));
  std::string text;
  for (const Value& c : items) text += c.string();
  return text;
}

Value Join(const Call& call) {
  const std::string sign = ToText(call.Get("d", ""));
  std::string text;
  bool first = true;
  for (const Value& item : ItemsOf(call)) {
    const std::string one = ToText(AttributeOrItem(call, item));
    call.interpreter.SpendText(one.size() + sign.size());
    if (!first) text += sign;
    first = false;
    text += one;
  }
  return text;
}

Value Sum(const Call& call) {
  Value sum = call.Get("start", 0);
  if (sum.is_string()) throw Error("sum can't add texts");
  for (const Value& item : ItemsOf(call)) {
    sum = call.interpreter.Binary("+", sum, AttributeOrItem(call, item));
  }
  return sum;
}

Value Sort(const Call& call) {
  return Sorted(ItemsOf(call), KeyOf(call), call.Integer("reverse", 0) != 0);
}

Value DictSort(const Call& call) {
  if (!call.self.is_dict()) throw Error("dictsort wants a dict");
  const std::string by = ToText(call.Get("by", "key"));
  if (by != "key" && by != "value") {
    throw Error("dictsort is by \"key\" or by \"value\"");
  }
  std::vector<Value> items;
  for (const auto& [key, value] : call.self.dict()->items) {
    items.push_back(Value::Tuple({key, value}));
  }
  call.interpreter.Spend(static_cast<int64_t>(items.size()));
  return Sorted(std::move(items), KeyOf(call, by == "value" ? 1 : 0),
                call.Truth("reverse"));
}

Value Unique(const Call& call) {
  const KeyOf key(call);
  std::vector<Value> kept;
  std::vector<Value> seen;
  for (const Value& item : ItemsOf(call)) {
    Value mine = key(item);
    CheckHashable(mine);
    call.interpreter.Spend(static_cast<int64_t>(seen.size()));
    if (std::any_of(seen.begin(), seen.end(),
                    [&](const Value& other) { return Equal(mine, other); })) {
      continue;
    }
    seen.push_back(std::move(mine));
    kept.push_back(item);
  }
  return Value::List(std::move(kept));
}

template <bool largest>
Value Extreme(const Call& call) {
  const KeyOf key(call);
  const std::vector<Value> items = ItemsOf(call);
  if (items.empty()) return Undefined{"there is no item"};
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    const Value a = key(items[i]);
    const Value b = key(items[best]);
    if (largest ? Less(b, a) : Less(a, b)) best = i;
  }
  return items[best];
}

Value GroupBy(const Call& call) {
  const KeyOf key(call);
  const std::vector<Value> items = ItemsOf(call);
  for (const Value& item : items) {
    const Value own = items.size() > 1 ? key(item) : Value();
    if (own.is_undefined()) throw Error(own.undefined());
  }
  std::vector<std::pair<Value, std::vector<Value>>> groups;
  const Value sorted = Sorted(items, key, /*reverse=*/false);
  for (const Value& item : sorted.sequence()->items) {
    if (groups.empty() || !Equal(key(groups.back().second[0]), key(item))) {
      groups.emplace_back(key.Whole(item), std::vector<Value>());
    }
    groups.back().second.push_back(item);
  }
  std::vector<Value> made;
  for (auto& [name, members] : groups) {
    made.push_back(Value::Tuple({name, Value::List(std::move(members))}));
  }
  return Value::List(std::move(made));
}

// The arguments after the first `count`.
Arguments Rest(const Arguments& given, size_t count) {
  Arguments rest = given;
  rest.positional.erase(
      rest.positional.begin(),
      rest.positional.begin() + std::min(count, rest.positional.size()));
  return rest;
}

Value Map(const Call& call) {
  static constexpr Builtin kByAttribute = {"map", nullptr, "attribute,default"};
  const Arguments& given = call.given;
  std::vector<Value> made;
  if (!given.positional.empty()) {
    const std::string filter = ToText(given.positional[0]);
    const Arguments rest = Rest(given, 1);
    for (const Value& item : ItemsIfAny(call)) {
      made.push_back(call.interpreter.Filter(filter, item, rest));
    }
    return Value::List(std::move(made));
  }
  const Call named(kByAttribute, call.interpreter, call.self, given);
  if (named.Find("attribute") == nullptr) {
    throw Error("map wants a filter's name or an attribute");
  }
  for (const Value& item : ItemsIfAny(call)) {
    Value one = AttributeOrItem(named, item);
    if (one.is_undefined()) one = named.Get("default", one);
    made.push_back(std::move(one));
  }
  return Value::List(std::move(made));
}

template <bool keep, bool attribute>
Value Select(const Call& call) {
  constexpr size_t kTest = attribute ? 1 : 0;
  const std::vector<Value>& given = call.given.positional;
  if (attribute && given.empty()) {
    throw Error("selectattr and rejectattr want an attribute");
  }
  std::vector<Value> kept;
  for (const Value& item : ItemsIfAny(call)) {
    const Value tested =
        attribute ? AttributeOf(call.interpreter, item, given[0]) : item;
    const bool holds = given.size() > kTest
                           ? call.interpreter.Test(ToText(given[kTest]), tested,
                                                   Rest(call.given, kTest + 1))
                           : tested.Truth();
    if (holds == keep) kept.push_back(item);
  }
  return Value::List(std::move(kept));
}

Value Items(const Call& call) {
  if (call.self.is_undefined()) return Value::List({});
  if (!call.self.is_dict()) throw Error("items wants a dict");
  return call.interpreter.Call(call.interpreter.Attribute(call.self, "items"),
                               {});
}

// ---- Filters of any value.

Value Default(const Call& call) {
  const bool missing =
      call.self.is_undefined() || (call.Truth("boolean") && !call.self.Truth());
  return missing ? call.Get("default_value", "") : call.self;
}

constexpr Builtin kFilters[] = {
    {"abs", Abs},
    {"capitalize",
     [](const Call& c) -> Value { return Capitalized(ToText(c.self)); }},
    {"count", [](const Call& c) -> Value { return Length(c.self); }},
    {"d", Default, "default_value,boolean"},
    {"default", Default, "default_value,boolean"},
    {"dictsort", DictSort, "case_sensitive,by,reverse"},
    {"e", [](const Call& c) { return Value::Markup(Escaped(c.self)); }},
    {"escape", [](const Call& c) { return Value::Markup(Escaped(c.self)); }},
    {"first", First},
    {"float", Float, "default"},
    {"format", FormatFilter, "*"},
    {"groupby", GroupBy, "attribute,default,case_sensitive", 1},
    {"indent", Indent, "width,first,blank"},
    {"int", Int, "default,base"},
    {"items", Items},
    {"join", Join, "d,attribute"},
    {"last", Last},
    {"length", [](const Call& c) -> Value { return Length(c.self); }},
    {"list", [](const Call& c) { return Value::List(ItemsOf(c)); }},
    {"lower", [](const Call& c) -> Value { return Lower(ToText(c.self)); }},
    {"map", Map, "*"},
    {"max", Extreme<true>, "case_sensitive,attribute"},
    {"min", Extreme<false>, "case_sensitive,attribute"},
    {"reject", Select<false, false>, "*"},
    {"rejectattr", Select<false, true>, "*"},
    {"replace", Replace, "old,new,count", 2},
    {"reverse", Reverse},
    {"round", Round, "precision,method"},
    {"safe", [](const Call& c) { return Value::Markup(ToText(c.self)); }},
    {"select", Select<true, false>, "*"},
    {"selectattr", Select<true, true>, "*"},
    {"sort", Sort, "reverse,case_sensitive,attribute"},
    {"string", [](const Call& c) -> Value { return ToText(c.self); }},
    {"sum", Sum, "attribute,start"},
    {"title",
     [](const Call& c) -> Value {
       return Title(ToText(c.self), /*python=*/false);
     }},
    {"tojson", JsonFilter, "ensure_ascii,indent,separators,sort_keys"},
    {"trim", Trim, "chars"},
    {"unique", Unique, "case_sensitive,attribute"},
    {"upper", [](const Call& c) -> Value { return Upper(ToText(c.self)); }},
};

}  // namespace

bool IsFilter(absl::string_view name) {
  return FindBuiltin(kFilters, name) != nullptr;
}

Value Interpreter::Filter(const std::string& name, const Value& of,
                          const Arguments& arguments) {
  const Builtin* const filter = FindBuiltin(kFilters, name);
  if (filter == nullptr) {
    throw Error(absl::StrCat("there is no filter `", name, "`"));
  }
  Spend(1);
  if (of.is_string()) Spend(static_cast<int64_t>(of.string().size() >> 6));
  Value made = filter->function({*filter, *this, of, arguments});
  if (made.is_string()) SpendText(made.string().size());
  return made;
}

}  // namespace capstan::jinja
