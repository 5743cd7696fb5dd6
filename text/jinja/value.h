// SPDX-License-Identifier: Apache-2.0
//
// The values of a template: Python's, as far as jinja shows them.
#ifndef CAPSTAN_TEXT_JINJA_VALUE_H_
#define CAPSTAN_TEXT_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan::jinja {

// What goes wrong in a template, caught where Template's functions return.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Work, depth or size beyond what is allowed.
class LimitError : public Error {
 public:
  using Error::Error;
};

class Interpreter;
class Value;

struct Arguments;

// A thing with attributes, or that can be called: a macro, a method, `loop`.
class Object {
 public:
  virtual ~Object() = default;
  virtual absl::optional<Value> Attribute(absl::string_view name);
  // False: attributes can't be set.
  virtual bool SetAttribute(absl::string_view name, Value value);
  virtual bool callable() const { return false; }
  virtual Value Call(Interpreter& interpreter, const Arguments& arguments);
  // How deeply values nest in it.
  virtual int depth() const { return 1; }
};

struct None {};
// An integer beyond 64 bits, of which only the text is known.
struct BigInteger {
  std::string digits;  // with a minus, without leading zeros
};
// What a name or an attribute that isn't there gives: `what` says which.
struct Undefined {
  std::string what;
};

// Lists and tuples. Templates can't change them.
struct Sequence {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  bool holds_objects = false;
};
// In the order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  bool holds_objects = false;
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;
  const Value* Find(const char* key) const {
    return Find(absl::string_view(key));
  }
  void Set(Value key, Value value);
};

// Cheap to copy but for strings. Immutable but for objects.
class Value {
 public:
  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}                      // NOLINT
  Value(int64_t value) : data_(value) {}                   // NOLINT
  Value(int value) : data_(int64_t{value}) {}              // NOLINT
  Value(double value) : data_(value) {}                    // NOLINT
  Value(std::string value) : data_(std::move(value)) {}    // NOLINT
  Value(const char* value) : data_(std::string(value)) {}  // NOLINT
  Value(Undefined value) : data_(std::move(value)) {}      // NOLINT
  Value(BigInteger value)                                  // NOLINT
      : data_(std::move(value.digits)), big_(true) {}
  Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}  // NOLINT
  // Error if values nest more deeply than destructors may call themselves.
  static Value List(std::vector<Value> items);
  static Value Tuple(std::vector<Value> items);
  static Value Of(Dict dict);
  // Of a JSON text; integers keep their digits. Error if it isn't JSON.
  static Value FromJson(absl::string_view json);
  // markupsafe's Markup, which escapes what is joined to it.
  static Value Markup(std::string text);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  // Not of bool, unlike Python's isinstance, nor of a BigInteger.
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_big() const { return big_; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const {
    return std::holds_alternative<std::string>(data_) && !big_;
  }
  bool is_sequence() const { return sequence() != nullptr; }
  bool is_dict() const { return dict() != nullptr; }
  bool is_object() const { return object() != nullptr; }

  const std::string& string() const { return std::get<std::string>(data_); }
  const std::string& digits() const { return std::get<std::string>(data_); }
  bool is_markup() const { return markup_; }
  // Of a bool, too.
  int64_t integer() const;
  // Of any number, a BigInteger among them.
  double number() const;
  const std::string& undefined() const {
    return std::get<Undefined>(data_).what;
  }
  // Null if it isn't one.
  const Sequence* sequence() const;
  const Dict* dict() const;
  Object* object() const;

  int depth() const;
  // Whether it is one, or one is in it.
  bool holds_objects() const;

  bool Truth() const;
  // Python's name of its type, for messages.
  const char* TypeName() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::string,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
               std::shared_ptr<Object>>
      data_;
  bool markup_ = false;
  bool big_ = false;  // the string is a BigInteger's digits
};

// The text for HTML: & < > ' " as references, unless it is markup.
std::string Escaped(const Value& text);

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Python's ==, < (an Error if the types have no order), and `in`.
bool Equal(const Value& a, const Value& b);
bool Less(const Value& a, const Value& b);
bool Contains(const Value& container, const Value& item);

// Throws Error where Python does: a list or a dict is no key.
void CheckHashable(const Value& key);

// Python's str() and repr().
std::string ToText(const Value& value);
std::string Repr(const Value& value);

// Python's json.dumps; indent < 0: on one line.
struct JsonFormat {
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  int indent = -1;
  bool sort_keys = false;
  bool ensure_ascii = false;
};
std::string ToJson(const Value& value, const JsonFormat& format);

// What a loop over the value gives: items, keys, characters. Error if it can't
// be iterated; nothing of an undefined one.
std::vector<Value> Iterate(const Value& value);
// Python's len().
int64_t Length(const Value& value);

// An integer's text, with a minus at most, as a value of any size.
Value IntegerOfText(absl::string_view digits);

template <typename Made, typename... Parts>
Value NewObject(Parts&&... parts) {
  return Value(std::shared_ptr<Object>(
      std::make_shared<Made>(std::forward<Parts>(parts)...)));
}

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_VALUE_H_
