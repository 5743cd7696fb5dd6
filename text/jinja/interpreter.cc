// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/interpreter.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/jinja/builtin.h"

namespace capstan::jinja {

const Value* Scope::Find(absl::string_view name) const {
  for (const Scope* scope = this; scope != nullptr;
       scope = scope->outer_.get()) {
    for (const auto& [n, value] : scope->values_) {
      if (n == name) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(absl::string_view name, Value value) {
  for (auto& [n, old] : values_) {
    if (n == name) {
      old = std::move(value);
      return;
    }
  }
  values_.emplace_back(std::string(name), std::move(value));
}

class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter* interpreter) : depth_(interpreter->depth_) {
    if (++depth_ > interpreter->limits_.depth) {
      --depth_;
      throw LimitError("the template's calls nest too deeply");
    }
  }
  ~Deeper() { --depth_; }

 private:
  int& depth_;
};

void Interpreter::Spend(int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) {
    throw LimitError(
        absl::StrCat("the template takes more than ", limits_.steps, " steps"));
  }
}

void Interpreter::SpendText(size_t bytes) {
  text_bytes_ += static_cast<int64_t>(bytes);
  Spend(static_cast<int64_t>(bytes >> 6));
  if (text_bytes_ > limits_.text_bytes) {
    throw LimitError(absl::StrCat("the template makes more than ",
                                  limits_.text_bytes >> 20, " MiB of text"));
  }
}

void Interpreter::Run(const Body& body, const Value& variables) {
  const auto scope = std::make_shared<Scope>(nullptr);
  for (const auto& [key, value] : variables.dict()->items) {
    scope->Set(key.string(), value);
  }
  Execute(body, scope);
}

// ---- Statements.

void Interpreter::Write(absl::string_view text) {
  SpendText(text.size());
  out_.append(text.data(), text.size());
}

Interpreter::Flow Interpreter::Execute(const Body& body,
                                       const ScopePtr& scope) {
  const Deeper deeper(this);
  for (const auto& statement : body) {
    Spend(1);
    const Flow flow = Execute(*statement, scope);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Execute(const Statement& statement,
                                       const ScopePtr& scope) {
  switch (statement.kind) {
    case StatementKind::kText:
      Write(statement.text);
      break;
    case StatementKind::kOutput:
      Write(ToText(Evaluate(*statement.expression, scope)));
      break;
    case StatementKind::kIf: {
      if (Evaluate(*statement.expression, scope).Truth()) {
        return Execute(statement.body, scope);
      }
      for (const Branch& branch : statement.branches) {
        if (Evaluate(*branch.expression, scope).Truth()) {
          return Execute(branch.body, scope);
        }
      }
      return Execute(statement.otherwise, scope);
    }
    case StatementKind::kFor:
      Loop(statement, scope);
      break;
    case StatementKind::kSet:
      Assign(*statement.target, Evaluate(*statement.expression, scope), scope);
      break;
    case StatementKind::kSetBlock: {
      Value text = Captured(statement.body, std::make_shared<Scope>(scope));
      if (statement.expression != nullptr) {
        text = Filtered(*statement.expression, text, scope);
      }
      Assign(*statement.target, std::move(text), scope);
      break;
    }
    case StatementKind::kMacro:
      scope->Set(statement.text, MakeMacro(statement, scope));
      break;
    case StatementKind::kCallBlock: {
      const Expression& call = *statement.expression;
      Arguments arguments = EvaluateArguments(call, scope);
      arguments.named.emplace_back("caller", MakeMacro(statement, scope));
      Write(ToText(Call(Evaluate(*call.parts[0], scope), arguments)));
      break;
    }
    case StatementKind::kFilter: {
      const std::string text =
          Captured(statement.body, std::make_shared<Scope>(scope));
      Write(ToText(Filtered(*statement.expression, text, scope)));
      break;
    }
    case StatementKind::kWith: {
      const auto inner = std::make_shared<Scope>(scope);
      for (const auto& [target, expression] : statement.assignments) {
        Assign(*target, Evaluate(*expression, scope), inner);
      }
      return Execute(statement.body, inner);
    }
    case StatementKind::kGeneration:
      Generate(statement.body, std::make_shared<Scope>(scope));
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::Loop(const Statement& loop, const ScopePtr& scope) {
  std::vector<Value> all = Iterate(Evaluate(*loop.expression, scope));
  Spend(static_cast<int64_t>(all.size()));
  if (loop.test != nullptr) {
    std::vector<Value> passed;
    for (Value& item : all) {
      const auto inner = std::make_shared<Scope>(scope);
      Assign(*loop.target, item, inner);
      if (Evaluate(*loop.test, inner).Truth()) passed.push_back(item);
    }
    all = std::move(passed);
  }
  if (all.empty()) {
    Execute(loop.otherwise, std::make_shared<Scope>(scope));
    return;
  }
  const auto state = std::make_shared<LoopState>();
  state->items = std::move(all);
  for (size_t i = 0; i < state->items.size(); ++i) {
    state->index = i;
    const auto inner = std::make_shared<Scope>(scope);
    inner->Set("loop", Value(std::shared_ptr<Object>(state)));
    Assign(*loop.target, state->items[i], inner);
    if (Execute(loop.body, inner) == Flow::kBreak) break;
  }
}

std::string Interpreter::Captured(const Body& body, const ScopePtr& scope) {
  std::string outer;
  outer.swap(out_);
  ++captures_;
  Execute(body, scope);
  --captures_;
  outer.swap(out_);
  return outer;
}

void Interpreter::Generate(const Body& body, const ScopePtr& scope) {
  const auto begin = static_cast<int64_t>(out_.size());
  Execute(body, scope);
  const auto end = static_cast<int64_t>(out_.size());
  if (captures_ == 0 && end > begin) generation_.emplace_back(begin, end);
}

void Interpreter::Assign(const Expression& target, Value value,
                         const ScopePtr& scope) {
  if (target.kind == ExpressionKind::kName) {
    scope->Set(target.name, std::move(value));
    return;
  }
  if (target.kind == ExpressionKind::kAttribute) {
    const Value of = Evaluate(*target.parts[0], scope);
    if (of.object() != nullptr &&
        of.object()->SetAttribute(target.name, std::move(value))) {
      return;
    }
    throw Error(absl::StrCat("line ", target.line, ": `", target.name,
                             "` can be set of a namespace only"));
  }
  const std::vector<Value> values = Iterate(value);
  if (values.size() != target.parts.size()) {
    throw Error(absl::StrCat("line ", target.line, ": ", values.size(),
                             " values for ", target.parts.size(), " names"));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    Assign(*target.parts[i], values[i], scope);
  }
}

Value Interpreter::RunMacro(const Statement& macro, const ScopePtr& scope,
                            const Arguments& arguments) {
  const Deeper deeper(this);
  const auto inner = std::make_shared<Scope>(scope);
  std::vector<absl::string_view> names;
  for (const Parameter& parameter : macro.parameters) {
    names.push_back(parameter.name);
  }
  // As jinja2's Macro: a caller that the body doesn't look at may not be given.
  Arguments given = arguments;
  absl::optional<Value> caller;
  for (auto one = given.named.begin(); one != given.named.end(); ++one) {
    if (one->first != "caller" || !macro.uses_caller) continue;
    caller = one->second;
    given.named.erase(one);
    break;
  }
  const std::vector<const Value*> values =
      Bind(given, names, absl::StrCat("the macro `", macro.text, "`"));
  for (size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (values[i] != nullptr) {
      inner->Set(parameter.name, *values[i]);
    } else if (parameter.otherwise != nullptr) {
      inner->Set(parameter.name, Evaluate(*parameter.otherwise, inner));
    } else {
      inner->Set(parameter.name,
                 Undefined{absl::StrCat("parameter '", parameter.name,
                                        "' was not provided")});
    }
  }
  if (caller.has_value()) inner->Set("caller", *std::move(caller));
  return Captured(macro.body, inner);
}

// ---- Expressions.

Value Interpreter::Evaluate(const Expression& expression,
                            const ScopePtr& scope) {
  const Deeper deeper(this);
  Spend(1);
  try {
    return EvaluateKind(expression, scope);
  } catch (const LimitError&) {
    throw;
  } catch (const Error& error) {
    // The innermost expression's line.
    if (absl::StartsWith(error.what(), "line ")) throw;
    throw Error(absl::StrCat("line ", expression.line, ": ", error.what()));
  }
}

Value Interpreter::EvaluateKind(const Expression& expression,
                                const ScopePtr& scope) {
  const auto part = [&](size_t i) {
    return Evaluate(*expression.parts[i], scope);
  };
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.value;
    case ExpressionKind::kName: {
      const Value* const found = scope->Find(expression.name);
      return found != nullptr ? *found : Global(expression.name);
    }
    case ExpressionKind::kTuple:
    case ExpressionKind::kList: {
      std::vector<Value> items;
      for (size_t i = 0; i < expression.parts.size(); ++i) {
        items.push_back(part(i));
      }
      return expression.kind == ExpressionKind::kTuple
                 ? Value::Tuple(std::move(items))
                 : Value::List(std::move(items));
    }
    case ExpressionKind::kDict: {
      Dict dict;
      for (size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
        Value key = part(i);
        CheckHashable(key);
        dict.Set(std::move(key), part(i + 1));
      }
      return Value::Of(std::move(dict));
    }
    case ExpressionKind::kAttribute:
      return Attribute(part(0), expression.name);
    case ExpressionKind::kItem: {
      const Value of = part(0);
      const Expression& index = *expression.parts[1];
      if (index.kind == ExpressionKind::kSlice) {
        return EvaluateSlice(of, index, scope);
      }
      return Item(of, Evaluate(index, scope));
    }
    case ExpressionKind::kSlice:
      throw Error("a slice stands alone");
    case ExpressionKind::kCall:
      return Call(part(0), EvaluateArguments(expression, scope));
    case ExpressionKind::kFilter:
      return EvaluateFilter(expression, part(0), scope);
    case ExpressionKind::kTest:
      return Test(expression.name, part(0),
                  EvaluateArguments(expression, scope));
    case ExpressionKind::kNot:
      return !part(0).Truth();
    case ExpressionKind::kNegative:
    case ExpressionKind::kPositive: {
      const Value of = part(0);
      if (of.is_big()) {
        if (expression.kind == ExpressionKind::kPositive) return of;
        return IntegerOfText(absl::StartsWith(of.digits(), "-")
                                 ? of.digits().substr(1)
                                 : "-" + of.digits());
      }
      if (!of.is_number()) {
        throw Error(absl::StrCat("a sign before a ", of.TypeName()));
      }
      if (expression.kind == ExpressionKind::kPositive) return of;
      if (of.is_float()) return -of.number();
      return Binary("-", Value(0), of);
    }
    case ExpressionKind::kBinary:
      return Binary(expression.name, part(0), part(1));
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression, scope);
    case ExpressionKind::kAnd: {
      const Value first = part(0);
      return first.Truth() ? part(1) : first;
    }
    case ExpressionKind::kOr: {
      const Value first = part(0);
      return first.Truth() ? first : part(1);
    }
    case ExpressionKind::kIf: {
      const Expression* choice = &expression;
      while (choice != nullptr && choice->kind == ExpressionKind::kIf) {
        if (Evaluate(*choice->parts[1], scope).Truth()) {
          return Evaluate(*choice->parts[0], scope);
        }
        choice = choice->parts[2].get();
      }
      if (choice != nullptr) return Evaluate(*choice, scope);
      return Undefined{
          "the inline if-expression evaluated to false and has no "
          "else"};
    }
  }
  return Value();
}

Value Interpreter::EvaluateFilter(const Expression& filter, const Value& of,
                                  const ScopePtr& scope) {
  return Filter(filter.name, of, EvaluateArguments(filter, scope));
}

Value Interpreter::Filtered(const Expression& filter, const Value& text,
                            const ScopePtr& scope) {
  const Expression* const inner = filter.parts[0].get();
  return EvaluateFilter(
      filter, inner == nullptr ? text : Filtered(*inner, text, scope), scope);
}

Arguments Interpreter::EvaluateArguments(const Expression& call,
                                         const ScopePtr& scope) {
  Arguments arguments;
  for (const ExpressionPtr& one : call.arguments) {
    arguments.positional.push_back(Evaluate(*one, scope));
  }
  if (call.more != nullptr) {
    for (Value& one : Iterate(Evaluate(*call.more, scope))) {
      arguments.positional.push_back(std::move(one));
    }
  }
  for (const auto& [name, one] : call.named) {
    arguments.named.emplace_back(name, Evaluate(*one, scope));
  }
  if (call.more_named != nullptr) {
    const Value more = Evaluate(*call.more_named, scope);
    if (!more.is_dict()) throw Error("** wants a dict");
    for (const auto& [name, one] : more.dict()->items) {
      arguments.named.emplace_back(ToText(name), one);
    }
  }
  return arguments;
}

Value Interpreter::EvaluateCompare(const Expression& compare,
                                   const ScopePtr& scope) {
  Value left = Evaluate(*compare.parts[0], scope);
  for (size_t i = 0; i < compare.operators.size(); ++i) {
    Value right = Evaluate(*compare.parts[i + 1], scope);
    const std::string& sign = compare.operators[i];
    bool holds = false;
    if (sign == "==" || sign == "!=") {
      holds = Equal(left, right) == (sign == "==");
    } else if (sign == "in" || sign == "not in") {
      if (right.is_sequence()) Spend(Length(right));
      holds = Contains(right, left) == (sign == "in");
    } else if (sign == "<") {
      holds = Less(left, right);
    } else if (sign == ">") {
      holds = Less(right, left);
    } else {
      holds = (sign == "<=" ? Less(left, right) : Less(right, left)) ||
              Equal(left, right);
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

// ---- Attributes and calls.

Value Interpreter::Attribute(const Value& of, absl::string_view name) {
  if (of.is_undefined()) throw Error(of.undefined());
  if (of.is_object()) {
    if (absl::optional<Value> found = of.object()->Attribute(name)) {
      return *std::move(found);
    }
  } else if (absl::optional<Value> method = MethodOf(of, name)) {
    return *std::move(method);
  } else if (of.is_dict()) {
    if (const Value* const found = of.dict()->Find(name)) return *found;
  }
  return Undefined{absl::StrCat("a ", of.TypeName(), " has no '", name, "'")};
}

Value Interpreter::Item(const Value& of, const Value& key) {
  if (of.is_undefined()) throw Error(of.undefined());
  if (const Dict* const dict = of.dict()) {
    Spend(static_cast<int64_t>(dict->items.size()));
    if (const Value* const found = dict->Find(key)) return *found;
  } else if ((of.is_sequence() || of.is_string()) &&
             (key.is_int() || key.is_bool())) {
    const int64_t length = Length(of);
    const int64_t at =
        key.integer() < 0 ? key.integer() + length : key.integer();
    if (at >= 0 && at < length) {
      if (of.is_sequence()) return of.sequence()->items[at];
      Spend(length);
      return Iterate(of)[at];
    }
  }
  if (key.is_string()) {
    // As jinja2's getitem does, if there is no such key.
    if (of.is_object()) return Attribute(of, key.string());
    if (absl::optional<Value> method = MethodOf(of, key.string())) {
      return *std::move(method);
    }
  }
  return Undefined{absl::StrCat("a ", of.TypeName(), " has no ", Repr(key))};
}

Value Interpreter::Call(const Value& function, const Arguments& arguments) {
  const Deeper deeper(this);
  if (function.is_undefined()) throw Error(function.undefined());
  if (function.object() == nullptr || !function.object()->callable()) {
    throw Error(absl::StrCat("a ", function.TypeName(), " can't be called"));
  }
  Value made = function.object()->Call(*this, arguments);
  Spend(1);
  if (made.is_string()) SpendText(made.string().size());
  return made;
}

Value Interpreter::Global(const std::string& name) {
  if (absl::optional<Value> found = GlobalNamed(name)) return *std::move(found);
  return Undefined{absl::StrCat("'", name, "' is undefined")};
}

}  // namespace capstan::jinja
