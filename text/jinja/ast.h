// SPDX-License-Identifier: Apache-2.0
//
// A parsed template.
#ifndef CAPSTAN_TEXT_JINJA_AST_H_
#define CAPSTAN_TEXT_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace capstan::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kConstant,   // value
  kName,       // name
  kTuple,      // parts
  kList,       // parts
  kDict,       // parts: key, value, key, value, ..
  kAttribute,  // parts[0].name
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts: begin, end, step, each or null; only as kItem's index
  kCall,       // parts[0](arguments)
  kFilter,     // parts[0]|name(arguments); parts[0] null: of a filter block
  kTest,       // parts[0] is name(arguments)
  kNot,
  kNegative,
  kPositive,
  kBinary,   // parts[0] name parts[1]: + - * / // % ** ~
  kCompare,  // parts[0] operators[0] parts[1] operators[1] parts[2] ..
  kAnd,
  kOr,
  kIf,  // parts[0] if parts[1] else parts[2], which may be null
};

struct Expression {
  ExpressionKind kind;
  int line = 0;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> operators;
  // Of calls, filters and tests.
  std::vector<ExpressionPtr> arguments;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more;        // *expression
  ExpressionPtr more_named;  // **expression
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

enum class StatementKind {
  kText,        // text
  kOutput,      // {{ expression }}
  kIf,          // if expression body, elif.., else otherwise
  kFor,         // for target in expression [if test] body, else otherwise
  kSet,         // set target = expression
  kSetBlock,    // set target, then body, through expression if it isn't null
  kMacro,       // macro text(parameters) body
  kCallBlock,   // call(parameters) expression, body
  kFilter,      // expression's filters on body
  kWith,        // with target = expression, ..: assignments, body
  kGeneration,  // body is what the assistant says
  kBreak,
  kContinue,
};

struct Branch {
  ExpressionPtr expression;
  Body body;
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // null: none
};

struct Statement {
  StatementKind kind;
  int line = 0;
  std::string text;
  ExpressionPtr target;  // kName, kTuple, or kAttribute of a namespace
  ExpressionPtr expression;
  ExpressionPtr test;
  Body body;
  std::vector<Branch> branches;  // elif
  Body otherwise;
  std::vector<Parameter> parameters;
  bool uses_caller = false;  // of a macro: `caller` is in its body
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
};

struct Parsed {
  Body body;
  bool marks_generation = false;  // has generation blocks
};

// Throws Error, "line N: ..".
Parsed Parse(const std::string& source, WhiteSpace white_space);

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_AST_H_
