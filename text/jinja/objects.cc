// SPDX-License-Identifier: Apache-2.0
//
// `loop`, macros, and jinja2's and transformers' global functions.
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/jinja/builtin.h"

namespace capstan::jinja {
namespace {

// As in jinja2's sandbox.
constexpr int64_t kMostOfRange = 100000;

class Macro final : public Object {
 public:
  Macro(const Statement& macro, const ScopePtr& scope)
      : macro_(macro), scope_(scope) {}
  absl::optional<Value> Attribute(absl::string_view name) override {
    if (name == "name") return Value(macro_.text);
    return absl::nullopt;
  }
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, const Arguments& arguments) override {
    // The scope holds the macro: shared, it would hold itself for ever.
    const ScopePtr scope = scope_.lock();
    if (scope == nullptr) throw Error("a macro is called after its scope");
    return interpreter.RunMacro(macro_, scope, arguments);
  }

 private:
  const Statement& macro_;
  const std::weak_ptr<Scope> scope_;
};

class Namespace final : public Object {
 public:
  explicit Namespace(Dict values) {
    for (auto& [name, value] : values.items) {
      SetAttribute(ToText(name), std::move(value));
    }
  }
  absl::optional<Value> Attribute(absl::string_view name) override {
    const Value* const found = values_.Find(name);
    if (found == nullptr) return absl::nullopt;
    return *found;
  }
  // Refuses what could refer back to it, and be kept for ever.
  // Nor, as transformers' does, a name that begins with an underscore.
  bool SetAttribute(absl::string_view name, Value value) override {
    if (absl::StartsWith(name, "_")) {
      throw Error(absl::StrCat("a namespace's `", name,
                               "` can't begin with an underscore"));
    }
    if (value.holds_objects()) {
      throw Error(absl::StrCat("a namespace's `", name,
                               "` can't be a function or namespace"));
    }
    values_.Set(std::string(name), std::move(value));
    return true;
  }

 private:
  Dict values_;
};

class Joiner final : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(std::move(separator)) {}
  bool callable() const override { return true; }
  Value Call(Interpreter&, const Arguments& given) override {
    Bind(given, {}, "joiner's function");
    return std::exchange(used_, true) ? separator_ : std::string();
  }

 private:
  const std::string separator_;
  bool used_ = false;
};

Dict DictOf(const Call& call) {
  const Arguments& given = call.given;
  if (given.positional.size() > 1) throw Error("dict takes one argument");
  Dict dict;
  if (!given.positional.empty() && given.positional[0].is_dict()) {
    dict = *given.positional[0].dict();
  } else if (!given.positional.empty()) {
    for (const Value& pair : Iterate(given.positional[0])) {
      const std::vector<Value> both = Iterate(pair);
      if (both.size() != 2) throw Error("dict wants pairs");
      CheckHashable(both[0]);
      dict.Set(both[0], both[1]);
    }
  }
  for (const auto& [name, value] : given.named) dict.Set(name, value);
  return dict;
}

Value Range(const Call& call) {
  const bool only_end = call.given.positional.size() == 1;
  const int64_t begin = only_end ? 0 : call.Integer("start", 0);
  const int64_t end = call.Integer(only_end ? "start" : "stop", 0);
  const int64_t step = call.Integer("step", 1);
  if (step == 0) throw Error("range's step can't be 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= kMostOfRange) {
      throw LimitError(
          absl::StrCat("a range has more than ", kMostOfRange, " items"));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  call.interpreter.Spend(static_cast<int64_t>(items.size()));
  return Value::List(std::move(items));
}

Value RaiseException(const Call& call) {
  throw Error(ToText(call.Get("message", "")));
}

Value StrftimeNow(const Call& call) {
  const std::string& format = call.Text("format");
  if (format.size() > 1000) throw LimitError("strftime_now's format is long");
  const std::time_t now = call.interpreter.now();
  std::tm local = {};
  localtime_r(&now, &local);
  // A blank in front tells an empty result from too small a buffer.
  std::string text(16 * format.size() + 64, '\0');
  text.resize(
      std::strftime(text.data(), text.size(), (" " + format).c_str(), &local));
  return text.empty() ? text : text.substr(1);
}

constexpr Builtin kGlobals[] = {
    {"range", Range, "start,stop,step/", 1},
    {"dict", [](const Call& c) { return Value::Of(DictOf(c)); }, "*"},
    {"namespace", [](const Call& c) { return NewObject<Namespace>(DictOf(c)); },
     "*"},
    {"joiner",
     [](const Call& c) {
       return NewObject<Joiner>(ToText(c.Get("sep", ", ")));
     },
     "sep"},
    {"raise_exception", RaiseException, "message", 1},
    {"strftime_now", StrftimeNow, "format", 1},
};

}  // namespace

Value MakeMacro(const Statement& macro, ScopePtr scope) {
  return NewObject<Macro>(macro, std::move(scope));
}

absl::optional<Value> LoopState::Attribute(absl::string_view name) {
  const auto at = static_cast<int64_t>(index);
  const auto length = static_cast<int64_t>(items.size());
  if (name == "index") return Value(at + 1);
  if (name == "index0") return Value(at);
  if (name == "revindex") return Value(length - at);
  if (name == "revindex0") return Value(length - at - 1);
  if (name == "first") return Value(at == 0);
  if (name == "last") return Value(at + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(1);
  if (name == "depth0") return Value(0);
  if (name == "previtem") {
    return at > 0 ? items[index - 1]
                  : Value(Undefined{"there is no previous item"});
  }
  if (name == "nextitem") {
    return at + 1 < length ? items[index + 1]
                           : Value(Undefined{"there is no next item"});
  }
  return absl::nullopt;
}

absl::optional<Value> GlobalNamed(absl::string_view name) {
  const Builtin* const found = FindBuiltin(kGlobals, name);
  if (found == nullptr) return absl::nullopt;
  return MakeFunction(*found, Value());
}

}  // namespace capstan::jinja
