// SPDX-License-Identifier: Apache-2.0
//
// What templates have beside plain values: `loop`, macros, and jinja2's and
// transformers' global functions.
#ifndef CAPSTAN_TEXT_JINJA_OBJECTS_H_
#define CAPSTAN_TEXT_JINJA_OBJECTS_H_

#include <memory>
#include <string>
#include <vector>

#include "text/jinja/interpreter.h"

namespace capstan::jinja {

// `loop`. It may be called in a recursive loop.
class LoopState final : public Object,
                        public std::enable_shared_from_this<LoopState> {
 public:
  LoopState(const Statement* loop, std::shared_ptr<Scope> scope, int depth)
      : loop_(*loop), scope_(std::move(scope)), depth_(depth) {}

  absl::optional<Value> Attribute(absl::string_view name) override;
  bool callable() const override { return loop_.recursive; }
  Value Call(Interpreter& interpreter, const Arguments& arguments) override;

  std::vector<Value> items;
  size_t index = 0;

 private:
  friend Value LoopCycle(Interpreter& interpreter, const Value& self,
                         const Arguments& arguments);
  friend Value LoopChanged(Interpreter& interpreter, const Value& self,
                           const Arguments& arguments);

  const Statement& loop_;
  const std::shared_ptr<Scope> scope_;
  const int depth_;
  std::vector<Value> last_changed_;
  bool any_changed_ = false;
};

// A macro, or a call block's `caller`; `macro` outlives it.
Value MakeMacro(const Statement& macro, std::shared_ptr<Scope> scope);

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now;
// nullopt for other names.
absl::optional<Value> GlobalNamed(const std::string& name);

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_OBJECTS_H_
