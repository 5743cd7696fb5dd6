// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_JINJA_PARSER_H_
#define CAPSTAN_TEXT_JINJA_PARSER_H_

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace capstan::jinja {

// Of expressions and statements in each other; templates in use have 20.
constexpr int kMostNested = 120;
// Operators, filters and the like in one expression: a chain of them is a tree
// as deep as it is long, which is walked and freed by recursion.
constexpr int kMostLinks = 5'000;

// By recursive descent, as jinja2's parser.py, whose precedences these are:
// statements in parser.cc, expressions in expression_parser.cc.
class Parser {
 public:
  Parser(const std::string& source, WhiteSpace white_space)
      : tokens_(Tokenize(source, white_space)) {}

  Parsed Run() {
    Parsed parsed;
    parsed.body = ParseBody({});
    if (!unknown_.empty()) throw Error(unknown_[0]);
    if (Now().kind != TokenKind::kEnd) Fail("there is more after the end");
    parsed.marks_generation = marks_generation_;
    return parsed;
  }

 private:
  // Counts how deeply the parser has called itself.
  class Nested {
   public:
    explicit Nested(Parser* parser) : depth_(parser->depth_) {
      if (++depth_ > kMostNested) parser->Fail("it nests too deeply");
    }
    ~Nested() { --depth_; }

   private:
    int& depth_;
  };

  const Token& Now() const { return tokens_[at_]; }
  const Token& After() const {
    return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
  }
  void Advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  [[noreturn]] void Fail(absl::string_view problem) const {
    throw Error(absl::StrCat("line ", Now().line, ": ", problem));
  }
  std::string Shown() const {
    switch (Now().kind) {
      case TokenKind::kEnd:
        return "the end";
      case TokenKind::kBlockEnd:
        return "%}";
      case TokenKind::kOutputEnd:
        return "}}";
      case TokenKind::kString:
        return Repr(Now().value);
      default:
        return absl::StrCat("`", Now().text, "`");
    }
  }
  bool SkipSign(const char* sign) {
    if (!Now().IsSign(sign)) return false;
    Advance();
    return true;
  }
  bool SkipName(const char* name) {
    if (!Now().IsName(name)) return false;
    Advance();
    return true;
  }
  void WantSign(const char* sign) {
    if (!SkipSign(sign)) {
      Fail(absl::StrCat("expected `", sign, "`, found ", Shown()));
    }
  }
  void WantKind(TokenKind kind, const char* what) {
    if (Now().kind != kind) {
      Fail(absl::StrCat("expected ", what, ", found ", Shown()));
    }
    Advance();
  }
  std::string WantName() {
    if (Now().kind != TokenKind::kName) {
      Fail(absl::StrCat("expected a name, found ", Shown()));
    }
    std::string name = Now().text;
    Advance();
    return name;
  }
  ExpressionPtr New(ExpressionKind kind) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = Now().line;
    return made;
  }
  ExpressionPtr NewOf(ExpressionKind kind, ExpressionPtr part) {
    if (++links_ > kMostLinks) Fail("an expression is too long");
    ExpressionPtr made = New(kind);
    made->parts.push_back(std::move(part));
    return made;
  }

  // ---- Statements.
  // `of_if`: of an if statement.
  Body ParseBody(std::initializer_list<const char*> ends, bool of_if = false);
  std::unique_ptr<Statement> ParseStatement();
  std::unique_ptr<Statement> NewStatement(StatementKind kind) const;
  // Parses the body up to `end`, and passes that.
  Body BodyTo(const char* end);
  void EndOfTag() { WantKind(TokenKind::kBlockEnd, "%}"); }
  void ParseIf(Statement* made);
  void ParseFor(Statement* made);
  void ParseSet(Statement* made);
  void ParseMacro(Statement* made);
  void ParseCallBlock(Statement* made);
  void ParseWith(Statement* made);
  void ParseFilterBlock(Statement* made);
  void ParseGeneration(Statement* made);
  void ParseLoopControl(Statement* made);
  void ParseParameters(Statement* made);
  // A body that is a function of its own: a loop around it isn't one of its.
  Body ParseFunction(const char* end, Statement* made);
  ExpressionPtr ParseTarget(bool attributes);
  ExpressionPtr ParseOneTarget(bool attributes);
  // A name that can be set.
  std::string WantTargetName();

  // ---- Expressions.
  // Several with commas are a tuple.
  ExpressionPtr ParseTuple(bool conditional = true);
  ExpressionPtr ParseExpression() { return ParseConditional(); }
  ExpressionPtr ParseConditional();
  ExpressionPtr ParseOr();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcat();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseUnary(bool filters = true);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParsePostfix(ExpressionPtr made);
  ExpressionPtr ParseFilters(ExpressionPtr made);
  ExpressionPtr ParseFilter(ExpressionPtr of);
  ExpressionPtr ParseTest(ExpressionPtr of);
  // A filter's or test's name.
  std::string ParseFunctionName(const char* kind,
                                bool (*is_known)(absl::string_view));
  ExpressionPtr ParseSubscript(ExpressionPtr of);
  ExpressionPtr ParseIndex();
  ExpressionPtr ParseList();
  ExpressionPtr ParseDict();
  // From "(" to ")".
  void ParseArguments(Expression* made);
  template <typename Operand>
  ExpressionPtr Binary(std::initializer_list<const char*> signs,
                       const Operand& operand);
  bool EndsTuple() const {
    return Now().kind == TokenKind::kBlockEnd ||
           Now().kind == TokenKind::kOutputEnd || Now().IsSign(")") ||
           Now().IsSign("=") || Now().IsName("in");
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int links_ = 0;             // of the output or tag that is read
  int loops_ = 0;             // around this place, that it can leave
  int fors_ = 0;              // around this place
  bool uses_caller_ = false;  // the function that is read
  bool marks_generation_ = false;
  // Filters and tests that aren't known, as errors: not those in an if, where
  // jinja2 leaves them to rendering (CodeGenerator._filter_test_common).
  std::vector<std::string> unknown_;
  bool in_if_ = false;
};

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_PARSER_H_
