// SPDX-License-Identifier: Apache-2.0
//
// The functions and objects that templates have beside plain values. jinja2's
// filters, tests and globals and the methods of Python's values are rows of
// tables.
#ifndef CAPSTAN_TEXT_JINJA_BUILTIN_H_
#define CAPSTAN_TEXT_JINJA_BUILTIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace capstan::jinja {

class Call;

struct Builtin {
  const char* name;
  Value (*function)(const Call& call);
  // As Python declares them, "width,first,blank"; "a,b/": they have no names;
  // "*": any arguments.
  const char* parameters = "";
  int required = 0;  // how many have no default
};

// The arguments in the order of the parameters; null where none is given.
// Throws Error, which names the function, if one is unknown, too many or given
// twice.
std::vector<const Value*> Bind(const Arguments& given,
                               const std::vector<absl::string_view>& parameters,
                               absl::string_view function);

// One call of a builtin function.
class Call {
 public:
  // Throws Error unless the arguments fit the function's parameters.
  Call(const Builtin& function, Interpreter& interpreter, const Value& self,
       const Arguments& given);

  // The argument of this name; null if it isn't given, or None.
  const Value* Find(absl::string_view name) const;
  // The argument as it is given, even None.
  Value Get(absl::string_view name, Value otherwise) const;
  bool Truth(absl::string_view name) const { return Get(name, false).Truth(); }
  // Error unless it is an integer or a bool.
  int64_t Integer(absl::string_view name, int64_t otherwise) const;
  // Error unless it is a text.
  const std::string& Text(absl::string_view name) const;

  Interpreter& interpreter;
  const Value& self;  // what is filtered or tested, or has the method
  const Arguments& given;

 private:
  const Builtin& function_;
  std::vector<absl::string_view> names_;
  std::vector<const Value*> values_;
};

// Null if there is none of that name.
template <size_t n>
const Builtin* FindBuiltin(const Builtin (&table)[n], absl::string_view name) {
  for (const Builtin& one : table) {
    if (name == one.name) return &one;
  }
  return nullptr;
}

// `function`, a method of `self` if that isn't None, as a value to be called.
Value MakeFunction(const Builtin& function, Value self);
// A macro, or a call block's `caller`; `macro` outlives it.
Value MakeMacro(const Statement& macro, ScopePtr scope);

bool IsFilter(absl::string_view name);
bool IsTest(absl::string_view name);
// A method that Python's values have; nullopt if none.
absl::optional<Value> MethodOf(const Value& of, absl::string_view name);
// range, dict, namespace, joiner, raise_exception, strftime_now; nullopt for
// other names.
absl::optional<Value> GlobalNamed(absl::string_view name);

// `loop`.
class LoopState final : public Object {
 public:
  absl::optional<Value> Attribute(absl::string_view name) override;

  std::vector<Value> items;
  size_t index = 0;
};

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_BUILTIN_H_
