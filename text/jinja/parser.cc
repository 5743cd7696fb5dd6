// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/parser.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace capstan::jinja {

using Kind = ExpressionKind;

Body Parser::ParseBody(std::initializer_list<const char*> ends, bool of_if) {
  const Nested nested(this);
  const bool outer = std::exchange(in_if_, of_if);
  Body body;
  while (Now().kind != TokenKind::kEnd) {
    links_ = 0;
    if (Now().kind == TokenKind::kText) {
      body.push_back(NewStatement(StatementKind::kText));
      body.back()->text = Now().text;
      Advance();
    } else if (Now().kind == TokenKind::kOutputBegin) {
      body.push_back(NewStatement(StatementKind::kOutput));
      Advance();
      body.back()->expression = ParseTuple();
      WantKind(TokenKind::kOutputEnd, "}}");
    } else {
      for (const char* const end : ends) {
        if (!After().IsName(end)) continue;
        in_if_ = outer;
        return body;
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
  struct Tag {
    const char* name;
    StatementKind kind;
    void (Parser::*parse)(Statement* made);
  };
  static constexpr Tag kTags[] = {
      {"if", StatementKind::kIf, &Parser::ParseIf},
      {"for", StatementKind::kFor, &Parser::ParseFor},
      {"set", StatementKind::kSet, &Parser::ParseSet},
      {"macro", StatementKind::kMacro, &Parser::ParseMacro},
      {"call", StatementKind::kCallBlock, &Parser::ParseCallBlock},
      {"with", StatementKind::kWith, &Parser::ParseWith},
      {"filter", StatementKind::kFilter, &Parser::ParseFilterBlock},
      {"generation", StatementKind::kGeneration, &Parser::ParseGeneration},
      {"break", StatementKind::kBreak, &Parser::ParseLoopControl},
      {"continue", StatementKind::kContinue, &Parser::ParseLoopControl},
  };
  const std::string name = WantName();
  for (const Tag& tag : kTags) {
    if (name != tag.name) continue;
    std::unique_ptr<Statement> made = NewStatement(tag.kind);
    made->text = name;
    (this->*tag.parse)(made.get());
    EndOfTag();
    return made;
  }
  Fail(absl::StrCat("there is no tag `", name, "` here"));
}

std::unique_ptr<Statement> Parser::NewStatement(StatementKind kind) const {
  auto made = std::make_unique<Statement>();
  made->kind = kind;
  made->line = Now().line;
  return made;
}

void Parser::ParseFilterBlock(Statement* made) {
  // The first filter has no bar before it.
  at_ -= 1;
  made->expression = ParseFilter(nullptr);
  while (Now().IsSign("|")) {
    made->expression = ParseFilter(std::move(made->expression));
  }
  made->body = BodyTo("endfilter");
}

void Parser::ParseGeneration(Statement* made) {
  marks_generation_ = true;
  made->body = ParseFunction("endgeneration", made);
}

void Parser::ParseLoopControl(Statement* made) {
  if (loops_ == 0) Fail(absl::StrCat("`", made->text, "` outside of a loop"));
}

void Parser::ParseIf(Statement* made) {
  const bool outer = std::exchange(in_if_, true);
  made->expression = ParseTuple(/*conditional=*/false);
  EndOfTag();
  made->body = ParseBody({"elif", "else", "endif"}, /*of_if=*/true);
  Advance();
  while (SkipName("elif")) {
    Branch branch;
    branch.expression = ParseTuple(/*conditional=*/false);
    EndOfTag();
    branch.body = ParseBody({"elif", "else", "endif"}, /*of_if=*/true);
    made->branches.push_back(std::move(branch));
    Advance();
  }
  if (SkipName("else")) {
    EndOfTag();
    made->otherwise = ParseBody({"endif"}, /*of_if=*/true);
    Advance();
  }
  in_if_ = outer;
  Advance();
}

void Parser::ParseFor(Statement* made) {
  ++fors_;
  made->target = ParseTarget(/*attributes=*/false);
  if (!SkipName("in")) Fail(absl::StrCat("expected `in`, found ", Shown()));
  made->expression = ParseTuple(/*conditional=*/false);
  if (SkipName("if")) made->test = ParseExpression();
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
  --fors_;
  Advance();
}

void Parser::ParseSet(Statement* made) {
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
    Parameter parameter;
    parameter.name = WantTargetName();
    for (const Parameter& other : made->parameters) {
      if (other.name == parameter.name) {
        Fail(absl::StrCat("two parameters are named `", other.name, "`"));
      }
    }
    if (SkipSign("=")) {
      parameter.otherwise = ParseExpression();
    } else if (!made->parameters.empty() &&
               made->parameters.back().otherwise != nullptr) {
      Fail("a parameter without a default follows one with a default");
    } else if (parameter.name == "caller") {
      Fail("a parameter `caller` wants a default");
    }
    made->parameters.push_back(std::move(parameter));
  }
  Advance();
}

Body Parser::ParseFunction(const char* end, Statement* made) {
  const int loops = std::exchange(loops_, 0);
  const bool caller = std::exchange(uses_caller_, false);
  Body body = BodyTo(end);
  made->uses_caller = uses_caller_;
  loops_ = loops;
  uses_caller_ |= caller;
  return body;
}

void Parser::ParseMacro(Statement* made) {
  made->text = WantName();
  ParseParameters(made);
  made->body = ParseFunction("endmacro", made);
}

void Parser::ParseCallBlock(Statement* made) {
  if (Now().IsSign("(")) ParseParameters(made);
  made->expression = ParseExpression();
  if (made->expression->kind != Kind::kCall) Fail("expected a call");
  made->body = ParseFunction("endcall", made);
}

void Parser::ParseWith(Statement* made) {
  while (Now().kind != TokenKind::kBlockEnd) {
    if (!made->assignments.empty()) WantSign(",");
    ExpressionPtr target = ParseTarget(/*attributes=*/false);
    WantSign("=");
    made->assignments.emplace_back(std::move(target), ParseExpression());
  }
  made->body = BodyTo("endwith");
}

std::string Parser::WantTargetName() {
  for (const char* const constant :
       {"true", "false", "none", "True", "False", "None"}) {
    if (Now().IsName(constant)) {
      Fail(absl::StrCat("`", constant, "` can't be set"));
    }
  }
  return WantName();
}

ExpressionPtr Parser::ParseOneTarget(bool attributes) {
  if (SkipSign("(")) {
    const Nested nested(this);
    ExpressionPtr inner = ParseTarget(attributes);
    WantSign(")");
    return inner;
  }
  ExpressionPtr made = New(Kind::kName);
  made->name = WantTargetName();
  if (!attributes || !Now().IsSign(".")) {
    if (fors_ > 0 && made->name == "loop") Fail("a loop's `loop` can't be set");
    return made;
  }
  Advance();
  ExpressionPtr attribute = NewOf(Kind::kAttribute, std::move(made));
  attribute->name = WantName();
  return attribute;
}

ExpressionPtr Parser::ParseTarget(bool attributes) {
  ExpressionPtr first = ParseOneTarget(attributes);
  if (!Now().IsSign(",")) return first;
  ExpressionPtr tuple = NewOf(Kind::kTuple, std::move(first));
  while (SkipSign(",") && !Now().IsSign(")") &&
         Now().kind != TokenKind::kBlockEnd) {
    tuple->parts.push_back(ParseOneTarget(attributes));
  }
  return tuple;
}

Parsed Parse(const std::string& source, WhiteSpace white_space) {
  return Parser(source, white_space).Run();
}

}  // namespace capstan::jinja
