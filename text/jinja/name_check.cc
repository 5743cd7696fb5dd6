// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "absl/strings/str_cat.h"
#include "text/jinja/ast.h"
#include "text/jinja/builtin.h"

namespace capstan::jinja {
namespace {

// `soft`: in an if, where jinja2 leaves unknown names to rendering
// (CodeGenerator._filter_test_common); what has names of its own in it isn't.
void Check(const Expression* expression, bool soft) {
  if (expression == nullptr) return;
  const bool filter = expression->kind == ExpressionKind::kFilter;
  const bool test = expression->kind == ExpressionKind::kTest;
  if (!soft && ((filter && !IsFilter(expression->name)) ||
                (test && !IsTest(expression->name)))) {
    throw Error(absl::StrCat("line ", expression->line, ": there is no ",
                             filter ? "filter" : "test", " `", expression->name,
                             "`"));
  }
  soft |= expression->kind == ExpressionKind::kIf;
  for (const ExpressionPtr& part : expression->parts) Check(part.get(), soft);
  for (const ExpressionPtr& one : expression->arguments) {
    Check(one.get(), soft);
  }
  for (const auto& [name, one] : expression->named) Check(one.get(), soft);
  Check(expression->more.get(), soft);
  Check(expression->more_named.get(), soft);
}

void Check(const Body& body, bool soft);

void Check(const Statement& statement, bool soft) {
  const bool is_if = statement.kind == StatementKind::kIf;
  soft |= is_if;
  Check(statement.expression.get(), soft);
  Check(statement.test.get(), soft);
  for (const Parameter& parameter : statement.parameters) {
    Check(parameter.otherwise.get(), soft);
  }
  for (const auto& [target, expression] : statement.assignments) {
    Check(expression.get(), soft);
  }
  Check(statement.body, is_if);
  for (const Branch& branch : statement.branches) {
    Check(branch.expression.get(), soft);
    Check(branch.body, is_if);
  }
  Check(statement.otherwise, is_if);
}

void Check(const Body& body, bool soft) {
  for (const auto& statement : body) Check(*statement, soft);
}

}  // namespace

void CheckNames(const Body& body) { Check(body, /*soft=*/false); }

}  // namespace capstan::jinja
