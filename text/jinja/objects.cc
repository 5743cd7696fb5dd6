// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/objects.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace capstan::jinja {
namespace {

// As in jinja2's sandbox.
constexpr int64_t kMostOfRange = 100000;

class FunctionObject final : public Object {
 public:
  FunctionObject(Function function, Value self, const char* name,
                 Signature signature)
      : function_(function),
        self_(std::move(self)),
        name_(name),
        signature_(signature) {}
  int depth() const override { return self_.depth() + 1; }
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, const Arguments& arguments) override {
    CheckArguments(signature_, name_, arguments);
    return function_(interpreter, self_, arguments);
  }

 private:
  const Function function_;
  const Value self_;
  const char* const name_;
  const Signature signature_;
};

class Macro final : public Object {
 public:
  Macro(const Statement* macro, std::shared_ptr<Scope> scope)
      : macro_(*macro), scope_(std::move(scope)) {}
  absl::optional<Value> Attribute(absl::string_view name) override {
    if (name == "name") return Value(macro_.text);
    return absl::nullopt;
  }
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, const Arguments& arguments) override {
    // The scope holds the macro: shared, it would hold itself for ever.
    const std::shared_ptr<Scope> scope = scope_.lock();
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

// jinja2's Cycler and Joiner.
class Cycler final : public Object,
                     public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> items)
      : items_(std::move(items)), depth_(Value::List(items_).depth()) {}
  int depth() const override { return depth_; }
  absl::optional<Value> Attribute(absl::string_view name) override {
    const Value self{std::shared_ptr<Object>(shared_from_this())};
    if (name == "current") return items_[at_];
    if (name == "next") return MakeFunction(&Next, self, "next", {});
    if (name == "reset") return MakeFunction(&Reset, self, "reset", {});
    return absl::nullopt;
  }

 private:
  static Value Next(Interpreter&, const Value& self, const Arguments&) {
    auto& cycler = static_cast<Cycler&>(*self.object());
    Value item = cycler.items_[cycler.at_];
    cycler.at_ = (cycler.at_ + 1) % cycler.items_.size();
    return item;
  }
  static Value Reset(Interpreter&, const Value& self, const Arguments&) {
    static_cast<Cycler&>(*self.object()).at_ = 0;
    return Value();
  }

  const std::vector<Value> items_;
  const int depth_;
  size_t at_ = 0;
};

class Joiner final : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(std::move(separator)) {}
  bool callable() const override { return true; }
  Value Call(Interpreter&, const Arguments&) override {
    return std::exchange(used_, true) ? separator_ : std::string();
  }

 private:
  const std::string separator_;
  bool used_ = false;
};

Dict DictOf(const Arguments& arguments) {
  Dict dict;
  arguments.AtMost(1, "dict");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_dict()) {
      dict = *from.dict();
    } else {
      for (const Value& pair : Iterate(from)) {
        const std::vector<Value> both = Iterate(pair);
        if (both.size() != 2) throw Error("dict wants pairs");
        CheckHashable(both[0]);
        dict.Set(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.Set(name, value);
  return dict;
}

Value Range(Interpreter& interpreter, const Value&, const Arguments& given) {
  for (const Value& one : given.positional) {
    if (!one.is_int() && !one.is_bool()) {
      throw Error(absl::StrCat("range wants integers, not a ", one.TypeName()));
    }
  }
  const bool only_end = given.positional.size() == 1;
  const int64_t begin = only_end ? 0 : given.positional[0].integer();
  const int64_t end = given.positional[only_end ? 0 : 1].integer();
  const int64_t step =
      given.positional.size() == 3 ? given.positional[2].integer() : 1;
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
  interpreter.Spend(static_cast<int64_t>(items.size()));
  return Value::List(std::move(items));
}

Value MakeDict(Interpreter&, const Value&, const Arguments& arguments) {
  return Value::Of(DictOf(arguments));
}

Value MakeNamespace(Interpreter&, const Value&, const Arguments& arguments) {
  return Value(
      std::shared_ptr<Object>(std::make_shared<Namespace>(DictOf(arguments))));
}

Value MakeCycler(Interpreter&, const Value&, const Arguments& arguments) {
  if (arguments.positional.empty()) throw Error("cycler wants items");
  return Value(
      std::shared_ptr<Object>(std::make_shared<Cycler>(arguments.positional)));
}

Value MakeJoiner(Interpreter&, const Value&, const Arguments& arguments) {
  return Value(std::shared_ptr<Object>(
      std::make_shared<Joiner>(ToText(arguments.Get(0, "sep", ", ")))));
}

Value RaiseException(Interpreter&, const Value&, const Arguments& arguments) {
  throw Error(ToText(arguments.Get(0, "message", "the template refuses this")));
}

Value StrftimeNow(Interpreter& interpreter, const Value&,
                  const Arguments& arguments) {
  const Value given = arguments.Get(0, "format", "");
  if (!given.is_string()) throw Error("strftime_now wants a text");
  const std::string& format = given.string();
  if (format.size() > 1000) throw LimitError("strftime_now's format is long");
  const std::time_t now = interpreter.now();
  std::tm local = {};
  localtime_r(&now, &local);
  // A blank in front tells an empty result from too small a buffer.
  std::string text(16 * format.size() + 64, '\0');
  text.resize(
      std::strftime(text.data(), text.size(), (" " + format).c_str(), &local));
  return text.empty() ? text : text.substr(1);
}

}  // namespace

Value MakeFunction(Function function, Value self, const char* name,
                   Signature signature) {
  return Value(std::shared_ptr<Object>(std::make_shared<FunctionObject>(
      function, std::move(self), name, signature)));
}

Value MakeMacro(const Statement& macro, std::shared_ptr<Scope> scope) {
  return Value(std::shared_ptr<Object>(
      std::make_shared<Macro>(&macro, std::move(scope))));
}

Value LoopCycle(Interpreter&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) throw Error("loop.cycle wants items");
  const auto& loop = static_cast<LoopState&>(*self.object());
  return arguments.positional[loop.index % arguments.positional.size()];
}

Value LoopChanged(Interpreter&, const Value& self, const Arguments& arguments) {
  auto& loop = static_cast<LoopState&>(*self.object());
  const bool same =
      loop.any_changed_ &&
      Equal(Value::List(loop.last_changed_), Value::List(arguments.positional));
  loop.any_changed_ = true;
  loop.last_changed_ = arguments.positional;
  return !same;
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
  if (name == "depth") return Value(depth_ + 1);
  if (name == "depth0") return Value(depth_);
  if (name == "previtem") {
    return at > 0 ? items[index - 1]
                  : Value(Undefined{"there is no previous item"});
  }
  if (name == "nextitem") {
    return at + 1 < length ? items[index + 1]
                           : Value(Undefined{"there is no next item"});
  }
  const Value self{std::shared_ptr<Object>(shared_from_this())};
  if (name == "cycle") return MakeFunction(&LoopCycle, self, "cycle", {"*"});
  if (name == "changed")
    return MakeFunction(&LoopChanged, self, "changed", {"*"});
  return absl::nullopt;
}

Value LoopState::Call(Interpreter& interpreter, const Arguments& arguments) {
  if (arguments.positional.size() != 1) throw Error("loop(..) wants items");
  return interpreter.RunLoopAgain(loop_, arguments.positional[0], scope_,
                                  depth_ + 1);
}

absl::optional<Value> GlobalNamed(const std::string& name) {
  struct Global {
    const char* name;
    Function function;
    Signature signature;
  };
  static constexpr Global kGlobals[] = {
      {"range", &Range, {"start,stop,step/", 1}},
      {"dict", &MakeDict, {"*"}},
      {"namespace", &MakeNamespace, {"*"}},
      {"cycler", &MakeCycler, {"*"}},
      {"joiner", &MakeJoiner, {"sep"}},
      {"raise_exception", &RaiseException, {"message", 1}},
      {"strftime_now", &StrftimeNow, {"format", 1}},
  };
  for (const Global& one : kGlobals) {
    if (name != one.name) continue;
    return MakeFunction(one.function, Value(), one.name, one.signature);
  }
  return absl::nullopt;
}

}  // namespace capstan::jinja
