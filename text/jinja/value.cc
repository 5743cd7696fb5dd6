// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "text/jinja/strings.h"

namespace capstan::jinja {
namespace {

using tokenizer::AppendCharacter;
using tokenizer::NextCharacter;

// JSON from outside nests up to this, and templates in use hardly add to it.
constexpr int kMostNestedValues = 300;

// Python's repr of a float: the shortest digits that read back the same.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value,
                                 std::chars_format::scientific);
  const std::string text(digits, end.ptr);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16) {
    return absl::StrFormat("%se%s%02d", text.substr(0, e),
                           exponent < 0 ? "-" : "+", std::abs(exponent));
  }
  const auto plain = std::to_chars(digits, digits + sizeof(digits), value,
                                   std::chars_format::fixed);
  std::string fixed(digits, plain.ptr);
  if (!absl::StrContains(fixed, '.')) fixed += ".0";
  return fixed;
}

// Whether Python's repr shows the character itself.
bool Printable(uint32_t c) {
  if (c == ' ') return true;
  const utf8proc_category_t category =
      utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

std::string StringRepr(absl::string_view text) {
  const char quote =
      absl::StrContains(text, '\'') && !absl::StrContains(text, '"') ? '"'
                                                                     : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = NextCharacter(text, &at);
    const size_t escape = absl::string_view("\n\r\t").find(char(c));
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c < 0x80 && escape != absl::string_view::npos) {
      out += {'\\', "nrt"[escape]};
    } else if (Printable(c)) {
      AppendCharacter(c, &out);
    } else if (c < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&out, "\\U%08x", c);
    }
  }
  return out + quote;
}

void AppendRepr(const Value& value, std::string* out) {
  if (value.is_string()) {
    *out += StringRepr(value.string());
  } else if (const Sequence* const sequence = value.sequence()) {
    *out += sequence->tuple ? "(" : "[";
    for (size_t i = 0; i < sequence->items.size(); ++i) {
      if (i > 0) *out += ", ";
      AppendRepr(sequence->items[i], out);
    }
    if (sequence->tuple && sequence->items.size() == 1) *out += ",";
    *out += sequence->tuple ? ")" : "]";
  } else if (const Dict* const dict = value.dict()) {
    *out += "{";
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) *out += ", ";
      AppendRepr(dict->items[i].first, out);
      *out += ": ";
      AppendRepr(dict->items[i].second, out);
    }
    *out += "}";
  } else if (value.is_undefined()) {
    *out += "Undefined";
  } else {
    *out += ToText(value);
  }
}

bool SameNumber(const Value& a, const Value& b) {
  return a.is_float() || b.is_float() ? a.number() == b.number()
                                      : a.integer() == b.integer();
}

}  // namespace

// ---- Objects.

absl::optional<Value> Object::Attribute(absl::string_view) {
  return absl::nullopt;
}
bool Object::SetAttribute(absl::string_view, Value) { return false; }
Value Object::Call(Interpreter&, const Arguments&) {
  throw Error("this object can't be called");
}

const Value* Dict::Find(const Value& key) const {
  for (const auto& [k, value] : items) {
    if (Equal(k, key)) return &value;
  }
  return nullptr;
}
const Value* Dict::Find(absl::string_view key) const {
  for (const auto& [k, value] : items) {
    if (k.is_string() && k.string() == key) return &value;
  }
  return nullptr;
}
void Dict::Set(Value key, Value value) {
  for (auto& [k, old] : items) {
    if (Equal(k, key)) {
      old = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

// ---- Values.

// What a list or dict that holds `item` is, too.
template <typename Holder>
void Hold(const Value& item, Holder* holder) {
  holder->depth = std::max(holder->depth, item.depth() + 1);
  holder->holds_objects |= item.holds_objects();
  if (holder->depth > kMostNestedValues)
    throw LimitError("values nest too deeply");
}

std::shared_ptr<const Sequence> MakeSequence(std::vector<Value> items,
                                             bool tuple) {
  Sequence made;
  made.tuple = tuple;
  for (const Value& item : items) Hold(item, &made);
  made.items = std::move(items);
  return std::make_shared<const Sequence>(std::move(made));
}

Value Value::List(std::vector<Value> items) {
  Value value;
  value.data_ = MakeSequence(std::move(items), false);
  return value;
}
Value Value::Tuple(std::vector<Value> items) {
  Value value;
  value.data_ = MakeSequence(std::move(items), true);
  return value;
}
Value Value::Of(Dict dict) {
  for (const auto& [key, item] : dict.items) {
    Hold(key, &dict);
    Hold(item, &dict);
  }
  Value value;
  value.data_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}

int Value::depth() const {
  if (const Sequence* const items = sequence()) return items->depth;
  if (const Dict* const items = dict()) return items->depth;
  return is_object() ? object()->depth() : 0;
}

bool Value::holds_objects() const {
  if (const Sequence* const items = sequence()) return items->holds_objects;
  if (const Dict* const items = dict()) return items->holds_objects;
  return is_object();
}

Value Value::Markup(std::string text) {
  Value value(std::move(text));
  value.markup_ = true;
  return value;
}

std::string Escaped(const Value& text) {
  if (text.is_markup()) return text.string();
  return absl::StrReplaceAll(ToText(text), {{"&", "&amp;"},
                                            {"<", "&lt;"},
                                            {">", "&gt;"},
                                            {"'", "&#39;"},
                                            {"\"", "&#34;"}});
}

int64_t Value::integer() const {
  return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_);
}
double Value::number() const {
  if (is_big()) return std::strtod(digits().c_str(), nullptr);
  return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
}
const Sequence* Value::sequence() const {
  const auto* found = std::get_if<std::shared_ptr<const Sequence>>(&data_);
  return found == nullptr ? nullptr : found->get();
}
const Dict* Value::dict() const {
  const auto* found = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return found == nullptr ? nullptr : found->get();
}
Object* Value::object() const {
  const auto* found = std::get_if<std::shared_ptr<Object>>(&data_);
  return found == nullptr ? nullptr : found->get();
}

bool Value::Truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_big()) return true;
  if (is_number()) return number() != 0.0;
  if (is_string()) return !string().empty();
  return is_object() || Length(*this) > 0;
}

const char* Value::TypeName() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int() || is_big()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (const Sequence* const items = sequence()) {
    return items->tuple ? "tuple" : "list";
  }
  return is_dict() ? "dict" : "object";
}

Value IntegerOfText(absl::string_view digits) {
  int64_t narrow = 0;
  if (absl::SimpleAtoi(digits, &narrow)) return narrow;
  const bool negative = absl::ConsumePrefix(&digits, "-");
  digits.remove_prefix(
      std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return BigInteger{absl::StrCat(negative ? "-" : "", digits)};
}

// ---- Comparison.

bool Equal(const Value& a, const Value& b) {
  if (a.is_big() && b.is_big()) return a.digits() == b.digits();
  if (a.is_big() || b.is_big()) {
    return (a.is_float() || b.is_float()) && a.number() == b.number();
  }
  if (a.is_number() && b.is_number()) return SameNumber(a, b);
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) {
    return a.is_undefined() && b.is_undefined();
  }
  if (a.is_sequence() && b.is_sequence()) {
    const Sequence& x = *a.sequence();
    const Sequence& y = *b.sequence();
    return x.tuple == y.tuple &&
           std::equal(x.items.begin(), x.items.end(), y.items.begin(),
                      y.items.end(), Equal);
  }
  if (a.is_dict() && b.is_dict()) {
    const Dict& x = *a.dict();
    const Dict& y = *b.dict();
    return x.items.size() == y.items.size() &&
           std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
             const Value* const other = y.Find(item.first);
             return other != nullptr && Equal(item.second, *other);
           });
  }
  return a.is_object() && a.object() == b.object();
}

// Of integers with digits alone.
bool LessDigits(absl::string_view a, absl::string_view b) {
  const bool negative = absl::StartsWith(a, "-");
  if (negative != absl::StartsWith(b, "-")) return negative;
  if (negative) std::swap(a, b);
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

bool Less(const Value& a, const Value& b) {
  if ((a.is_big() || b.is_big()) && (a.is_big() || a.is_number()) &&
      (b.is_big() || b.is_number())) {
    return a.is_big() && b.is_big() ? LessDigits(a.digits(), b.digits())
                                    : a.number() < b.number();
  }
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? a.number() < b.number()
                                        : a.integer() < b.integer();
  }
  // The order of UTF-8's bytes is that of its characters.
  if (a.is_string() && b.is_string()) return a.string() < b.string();
  if (a.is_sequence() && b.is_sequence() &&
      a.sequence()->tuple == b.sequence()->tuple) {
    const auto& x = a.sequence()->items;
    const auto& y = b.sequence()->items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!Equal(x[i], y[i])) return Less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  throw Error(absl::StrCat("a ", a.TypeName(), " and a ", b.TypeName(),
                           " have no order"));
}

void CheckHashable(const Value& key) {
  if (const Sequence* const items = key.sequence();
      items != nullptr && items->tuple) {
    for (const Value& item : items->items) CheckHashable(item);
  } else if (key.is_sequence() || key.is_dict()) {
    throw Error(absl::StrCat("a ", key.TypeName(), " can't be a key"));
  }
}

bool Contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      throw Error(
          absl::StrCat("`in` of a text wants a text, not a ", item.TypeName()));
    }
    return absl::StrContains(container.string(), item.string());
  }
  if (const Dict* const dict = container.dict()) {
    CheckHashable(item);
    return dict->Find(item) != nullptr;
  }
  const std::vector<Value> items = Iterate(container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& one) { return Equal(one, item); });
}

// ---- As text.

std::string ToText(const Value& value) {
  if (value.is_string()) return value.string();
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.integer() != 0 ? "True" : "False";
  if (value.is_int()) return absl::StrCat(value.integer());
  if (value.is_big()) return value.digits();
  if (value.is_float()) return FloatText(value.number());
  if (value.is_object()) return "<object>";
  return Repr(value);
}

std::string Repr(const Value& value) {
  std::string out;
  AppendRepr(value, &out);
  return out;
}

// ---- Parts.

std::vector<Value> Iterate(const Value& value) {
  if (value.is_undefined()) return {};
  if (const Sequence* const sequence = value.sequence()) return sequence->items;
  std::vector<Value> items;
  if (const Dict* const dict = value.dict()) {
    for (const auto& [key, item] : dict->items) items.push_back(key);
  } else if (value.is_string()) {
    for (std::string& c : Characters(value.string())) {
      items.emplace_back(std::move(c));
    }
  } else {
    throw Error(absl::StrCat("a ", value.TypeName(), " can't be iterated"));
  }
  return items;
}

int64_t Length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return CharacterCount(value.string());
  if (const Sequence* const sequence = value.sequence()) {
    return static_cast<int64_t>(sequence->items.size());
  }
  if (const Dict* const dict = value.dict()) {
    return static_cast<int64_t>(dict->items.size());
  }
  throw Error(absl::StrCat("a ", value.TypeName(), " has no length"));
}

}  // namespace capstan::jinja
