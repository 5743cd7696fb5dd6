// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_JINJA_INTERPRETER_H_
#define CAPSTAN_TEXT_JINJA_INTERPRETER_H_

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace capstan::jinja {

class Scope;
using ScopePtr = std::shared_ptr<Scope>;

// Names and their values in a part of a template; what isn't in it is looked up
// in the part around it.
class Scope {
 public:
  explicit Scope(ScopePtr outer) : outer_(std::move(outer)) {}
  const Value* Find(absl::string_view name) const;
  void Set(absl::string_view name, Value value);

 private:
  const ScopePtr outer_;
  std::vector<std::pair<std::string, Value>> values_;
};

// Runs a parsed template once. Throws Error.
class Interpreter {
 public:
  Interpreter(const Limits& limits, std::time_t now)
      : limits_(limits), now_(now) {}

  // Its output is text() and generation().
  void Run(const Body& body, const Value& variables);
  std::string& text() { return out_; }
  std::vector<std::pair<int64_t, int64_t>>& generation() { return generation_; }

  // For objects, filters and tests.
  Value Call(const Value& function, const Arguments& arguments);
  Value Filter(const std::string& name, const Value& of,
               const Arguments& arguments);
  bool Test(const std::string& name, const Value& of,
            const Arguments& arguments);
  // of.name, and of[key]: Undefined if there is none.
  Value Attribute(const Value& of, absl::string_view name);
  Value Item(const Value& of, const Value& key);
  // a sign b, of + - * / // % ** ~.
  Value Binary(const std::string& sign, const Value& a, const Value& b);
  // Runs a macro's or call block's body.
  Value RunMacro(const Statement& macro, const ScopePtr& scope,
                 const Arguments& arguments);
  std::time_t now() const { return now_; }

  // Counts work of this size, in steps; Error beyond the limit.
  void Spend(int64_t steps);
  // Counts `bytes` of text that was made.
  void SpendText(size_t bytes);

 private:
  class Deeper;
  enum class Flow { kNormal, kBreak, kContinue };

  Flow Execute(const Body& body, const ScopePtr& scope);
  Flow Execute(const Statement& statement, const ScopePtr& scope);
  void Loop(const Statement& loop, const ScopePtr& scope);
  std::string Captured(const Body& body, const ScopePtr& scope);
  void Generate(const Body& body, const ScopePtr& scope);
  void Assign(const Expression& target, Value value, const ScopePtr& scope);
  void Write(absl::string_view text);

  Value Evaluate(const Expression& expression, const ScopePtr& scope);
  Value EvaluateKind(const Expression& expression, const ScopePtr& scope);
  Value EvaluateFilter(const Expression& filter, const Value& of,
                       const ScopePtr& scope);
  Value EvaluateSlice(const Value& of, const Expression& slice,
                      const ScopePtr& scope);
  Value EvaluateCompare(const Expression& compare, const ScopePtr& scope);
  Arguments EvaluateArguments(const Expression& call, const ScopePtr& scope);
  Value Global(const std::string& name);
  // A filter block's filters, from the innermost on.
  Value Filtered(const Expression& filter, const Value& text,
                 const ScopePtr& scope);

  const Limits limits_;
  const std::time_t now_;
  int64_t steps_ = 0;
  int64_t text_bytes_ = 0;
  int depth_ = 0;
  int captures_ = 0;  // under way: what is written isn't the output
  std::string out_;
  std::vector<std::pair<int64_t, int64_t>> generation_;
};

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_INTERPRETER_H_
