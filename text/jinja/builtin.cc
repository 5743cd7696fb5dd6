// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/builtin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace capstan::jinja {
namespace {

class FunctionObject final : public Object {
 public:
  FunctionObject(const Builtin& function, Value self)
      : function_(function), self_(std::move(self)) {}
  int depth() const override { return self_.depth() + 1; }
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, const Arguments& given) override {
    return function_.function({function_, interpreter, self_, given});
  }

 private:
  const Builtin& function_;
  const Value self_;
};

}  // namespace

std::vector<const Value*> Bind(const Arguments& given,
                               const std::vector<absl::string_view>& parameters,
                               absl::string_view function) {
  if (given.positional.size() > parameters.size()) {
    throw Error(absl::StrCat(function, " takes at most ", parameters.size(),
                             " arguments, is given ", given.positional.size()));
  }
  std::vector<const Value*> bound(parameters.size());
  for (size_t i = 0; i < given.positional.size(); ++i) {
    bound[i] = &given.positional[i];
  }
  for (const auto& [name, value] : given.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      throw Error(
          absl::StrCat(function, " has no argument of the name `", name, "`"));
    }
    const Value*& place = bound[found - parameters.begin()];
    if (place != nullptr) {
      throw Error(absl::StrCat(function, " is given `", name, "` twice"));
    }
    place = &value;
  }
  return bound;
}

Call::Call(const Builtin& function, Interpreter& run, const Value& of,
           const Arguments& arguments)
    : interpreter(run), self(of), given(arguments), function_(function) {
  absl::string_view parameters = function.parameters;
  if (parameters == "*") return;
  if (absl::ConsumeSuffix(&parameters, "/") && !given.named.empty()) {
    throw Error(absl::StrCat(function.name, " has no argument of the name `",
                             given.named[0].first, "`"));
  }
  names_ = absl::StrSplit(parameters, ',', absl::SkipEmpty());
  values_ = Bind(given, names_, function.name);
  for (int i = 0; i < function.required; ++i) {
    if (values_[i] != nullptr) continue;
    throw Error(
        absl::StrCat(function.name, " lacks the argument `", names_[i], "`"));
  }
}

const Value* Call::Find(absl::string_view name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] != name || values_[i] == nullptr) continue;
    return values_[i]->is_none() ? nullptr : values_[i];
  }
  return nullptr;
}

Value Call::Get(absl::string_view name, Value otherwise) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == name && values_[i] != nullptr) return *values_[i];
  }
  return otherwise;
}

int64_t Call::Integer(absl::string_view name, int64_t otherwise) const {
  const Value found = Get(name, otherwise);
  if (found.is_int() || found.is_bool()) return found.integer();
  throw Error(absl::StrCat(function_.name, ": `", name,
                           "` is to be an integer, not a ", found.TypeName()));
}

const std::string& Call::Text(absl::string_view name) const {
  const Value* const found = Find(name);
  if (found != nullptr && found->is_string()) return found->string();
  throw Error(absl::StrCat(function_.name, ": `", name,
                           "` is to be a text, not a ",
                           Get(name, Value()).TypeName()));
}

Value MakeFunction(const Builtin& function, Value self) {
  return NewObject<FunctionObject>(function, std::move(self));
}

}  // namespace capstan::jinja
