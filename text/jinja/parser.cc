// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/parser.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace capstan::jinja {

using Kind = ExpressionKind;

Body Parser::ParseBody(std::initializer_list<const char*> ends) {
  const Nested nested(this);
  Body body;
  while (Now().kind != TokenKind::kEnd) {
    links_ = 0;
    if (Now().kind == TokenKind::kText) {
      auto made = std::make_unique<Statement>();
      made->kind = StatementKind::kText;
      made->line = Now().line;
      made->text = Now().text;
      body.push_back(std::move(made));
      Advance();
    } else if (Now().kind == TokenKind::kOutputBegin) {
      auto made = std::make_unique<Statement>();
      made->kind = StatementKind::kOutput;
      made->line = Now().line;
      Advance();
      made->expression = ParseTuple();
      WantKind(TokenKind::kOutputEnd, "}}");
      body.push_back(std::move(made));
    } else {
      for (const char* const end : ends) {
        if (After().IsName(end)) return body;
      }
      Advance();
      body.push_back(ParseStatement());
    }
  }
  if (ends.size() > 0) {
    Fail(absl::StrCat("the template ends where `", *(ends.end() - 1),
                      "` should come"));
  }
  return body;
}

Body Parser::BodyTo(const char* end) {
  EndOfTag();
  Body body = ParseBody({end});
  Advance();
  Advance();
  return body;
}

std::unique_ptr<Statement> Parser::ParseStatement() {
  auto made = std::make_unique<Statement>();
  made->line = Now().line;
  const std::string name = WantName();
  if (name == "if") {
    ParseIf(made.get());
  } else if (name == "for") {
    ParseFor(made.get());
  } else if (name == "set") {
    ParseSet(made.get());
  } else if (name == "macro") {
    ParseMacro(made.get());
  } else if (name == "call") {
    ParseCallBlock(made.get());
  } else if (name == "with") {
    ParseWith(made.get());
  } else if (name == "filter") {
    made->kind = StatementKind::kFilter;
    // The first has no bar before it.
    at_ -= 1;
    made->expression = ParseFilter(nullptr);
    while (Now().IsSign("|")) {
      made->expression = ParseFilter(std::move(made->expression));
    }
    made->body = BodyTo("endfilter");
  } else if (name == "generation") {
    made->kind = StatementKind::kGeneration;
    marks_generation_ = true;
    made->body = BodyTo("endgeneration");
  } else if (name == "break" || name == "continue") {
    if (loops_ == 0) Fail(absl::StrCat("`", name, "` outside of a loop"));
    made->kind =
        name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
  } else {
    Fail(absl::StrCat("there is no tag `", name, "` here"));
  }
  EndOfTag();
  return made;
}

void Parser::ParseIf(Statement* made) {
  made->kind = StatementKind::kIf;
  made->expression = ParseTuple(/*conditional=*/false);
  EndOfTag();
  made->body = ParseBody({"elif", "else", "endif"});
  Advance();
  if (Now().IsName("elif")) {
    const Nested nested(this);
    auto inner = std::make_unique<Statement>();
    inner->line = Now().line;
    Advance();
    ParseIf(inner.get());
    made->otherwise.push_back(std::move(inner));
    return;  // it has passed endif
  }
  if (SkipName("else")) {
    EndOfTag();
    made->otherwise = ParseBody({"endif"});
    Advance();
  }
  Advance();
}

void Parser::ParseFor(Statement* made) {
  made->kind = StatementKind::kFor;
  made->target = ParseTarget(/*attributes=*/false);
  if (!SkipName("in")) Fail(absl::StrCat("expected `in`, found ", Shown()));
  made->expression = ParseTuple(/*conditional=*/false);
  if (SkipName("if")) made->test = ParseExpression();
  made->recursive = SkipName("recursive");
  EndOfTag();
  ++loops_;
  made->body = ParseBody({"else", "endfor"});
  --loops_;
  Advance();
  if (SkipName("else")) {
    EndOfTag();
    made->otherwise = ParseBody({"endfor"});
    Advance();
  }
  Advance();
}

void Parser::ParseSet(Statement* made) {
  made->kind = StatementKind::kSet;
  made->target = ParseTarget(/*attributes=*/true);
  if (SkipSign("=")) {
    made->expression = ParseTuple();
    return;
  }
  made->kind = StatementKind::kSetBlock;
  while (Now().IsSign("|")) {
    made->expression = ParseFilter(std::move(made->expression));
  }
  made->body = BodyTo("endset");
}

void Parser::ParseParameters(Statement* made) {
  WantSign("(");
  while (!Now().IsSign(")")) {
    if (!made->parameters.empty()) WantSign(",");
    if (Now().IsSign(")")) break;
    Parameter parameter;
    parameter.name = WantName();
    if (SkipSign("=")) parameter.otherwise = ParseExpression();
    made->parameters.push_back(std::move(parameter));
  }
  Advance();
}

void Parser::ParseMacro(Statement* made) {
  made->kind = StatementKind::kMacro;
  made->text = WantName();
  ParseParameters(made);
  const int loops = std::exchange(loops_, 0);
  made->body = BodyTo("endmacro");
  loops_ = loops;
}

void Parser::ParseCallBlock(Statement* made) {
  made->kind = StatementKind::kCallBlock;
  if (Now().IsSign("(")) ParseParameters(made);
  made->expression = ParseExpression();
  if (made->expression->kind != Kind::kCall) Fail("expected a call");
  const int loops = std::exchange(loops_, 0);
  made->body = BodyTo("endcall");
  loops_ = loops;
}

void Parser::ParseWith(Statement* made) {
  made->kind = StatementKind::kWith;
  while (Now().kind != TokenKind::kBlockEnd) {
    if (!made->assignments.empty()) WantSign(",");
    ExpressionPtr target = ParseTarget(/*attributes=*/false);
    WantSign("=");
    made->assignments.emplace_back(std::move(target), ParseExpression());
  }
  made->body = BodyTo("endwith");
}

ExpressionPtr Parser::ParseOneTarget(bool attributes) {
  if (SkipSign("(")) {
    const Nested nested(this);
    ExpressionPtr inner = ParseTarget(attributes);
    WantSign(")");
    return inner;
  }
  ExpressionPtr made = New(Kind::kName);
  made->name = WantName();
  if (!attributes || !Now().IsSign(".")) return made;
  Advance();
  ExpressionPtr attribute = NewOf(Kind::kAttribute, std::move(made));
  attribute->name = WantName();
  return attribute;
}

ExpressionPtr Parser::ParseTarget(bool attributes) {
  ExpressionPtr first = ParseOneTarget(attributes);
  if (!Now().IsSign(",")) return first;
  ExpressionPtr tuple = NewOf(Kind::kTuple, std::move(first));
  while (SkipSign(",") && !EndsTuple()) {
    tuple->parts.push_back(ParseOneTarget(attributes));
  }
  return tuple;
}

Parsed Parse(const std::string& source) { return Parser(source).Run(); }

}  // namespace capstan::jinja
