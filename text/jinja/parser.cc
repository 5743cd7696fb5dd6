// SPDX-License-Identifier: Apache-2.0
//
// By recursive descent, as jinja2's parser.py, whose precedences these are.
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace capstan::jinja {
namespace {

// Of expressions and statements in each other; templates in use have 20.
constexpr int kMostNested = 120;

using Kind = ExpressionKind;

class Parser {
 public:
  explicit Parser(const std::string& source) : tokens_(Tokenize(source)) {}

  Parsed Run() {
    Parsed parsed;
    parsed.body = ParseBody({});
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
  ExpressionPtr New(Kind kind) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = Now().line;
    return made;
  }
  ExpressionPtr NewOf(Kind kind, ExpressionPtr part) const {
    ExpressionPtr made = New(kind);
    made->parts.push_back(std::move(part));
    return made;
  }

  // ---- Statements.
  Body ParseBody(std::initializer_list<const char*> ends);
  std::unique_ptr<Statement> ParseStatement();
  // Parses the body up to `end`, and passes that.
  Body BodyTo(const char* end);
  void EndOfTag() { WantKind(TokenKind::kBlockEnd, "%}"); }
  void ParseIf(Statement* made);
  void ParseFor(Statement* made);
  void ParseSet(Statement* made);
  void ParseMacro(Statement* made);
  void ParseCallBlock(Statement* made);
  void ParseWith(Statement* made);
  void ParseParameters(Statement* made);
  ExpressionPtr ParseTarget(bool attributes);
  ExpressionPtr ParseOneTarget(bool attributes);

  // ---- Expressions.
  // Several with commas are a tuple.
  ExpressionPtr ParseTuple(bool conditional = true);
  ExpressionPtr ParseExpression() { return ParseConditional(); }
  ExpressionPtr ParseConditional();
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
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
           Now().IsSign("=") || Now().IsName("in") || Now().IsName("recursive");
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // around this place
  bool marks_generation_ = false;
};

// ---- Statements.

Body Parser::ParseBody(std::initializer_list<const char*> ends) {
  const Nested nested(this);
  Body body;
  while (Now().kind != TokenKind::kEnd) {
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

// ---- Expressions.

ExpressionPtr Parser::ParseTuple(bool conditional) {
  const auto one = [&] { return conditional ? ParseConditional() : ParseOr(); };
  ExpressionPtr first = one();
  if (!Now().IsSign(",")) return first;
  ExpressionPtr tuple = NewOf(Kind::kTuple, std::move(first));
  while (SkipSign(",") && !EndsTuple()) tuple->parts.push_back(one());
  return tuple;
}

ExpressionPtr Parser::ParseConditional() {
  const Nested nested(this);
  ExpressionPtr made = ParseOr();
  while (Now().IsName("if")) {
    ExpressionPtr choice = NewOf(Kind::kIf, std::move(made));
    Advance();
    choice->parts.push_back(ParseOr());
    choice->parts.push_back(SkipName("else") ? ParseConditional() : nullptr);
    made = std::move(choice);
  }
  return made;
}

ExpressionPtr Parser::ParseOr() {
  ExpressionPtr made = ParseAnd();
  while (Now().IsName("or")) {
    made = NewOf(Kind::kOr, std::move(made));
    Advance();
    made->parts.push_back(ParseAnd());
  }
  return made;
}

ExpressionPtr Parser::ParseAnd() {
  ExpressionPtr made = ParseNot();
  while (Now().IsName("and")) {
    made = NewOf(Kind::kAnd, std::move(made));
    Advance();
    made->parts.push_back(ParseNot());
  }
  return made;
}

ExpressionPtr Parser::ParseNot() {
  if (!Now().IsName("not")) return ParseCompare();
  const Nested nested(this);
  ExpressionPtr made = New(Kind::kNot);
  Advance();
  made->parts.push_back(ParseNot());
  return made;
}

ExpressionPtr Parser::ParseCompare() {
  ExpressionPtr first = ParseSum();
  ExpressionPtr made;
  while (true) {
    std::string sign;
    for (const char* const one : {"==", "!=", "<", "<=", ">", ">="}) {
      if (Now().IsSign(one)) sign = one;
    }
    if (Now().IsName("in")) sign = "in";
    if (Now().IsName("not") && After().IsName("in")) {
      sign = "not in";
      Advance();
    }
    if (sign.empty()) break;
    if (made == nullptr) made = NewOf(Kind::kCompare, std::move(first));
    Advance();
    made->operators.push_back(std::move(sign));
    made->parts.push_back(ParseSum());
  }
  return made == nullptr ? std::move(first) : std::move(made);
}

template <typename Operand>
ExpressionPtr Parser::Binary(std::initializer_list<const char*> signs,
                             const Operand& operand) {
  ExpressionPtr made = operand();
  while (true) {
    const char* found = nullptr;
    for (const char* const sign : signs) {
      if (Now().IsSign(sign)) found = sign;
    }
    if (found == nullptr) return made;
    made = NewOf(Kind::kBinary, std::move(made));
    made->name = found;
    Advance();
    made->parts.push_back(operand());
  }
}

ExpressionPtr Parser::ParseSum() {
  return Binary({"+", "-"}, [this] { return ParseConcat(); });
}
ExpressionPtr Parser::ParseConcat() {
  return Binary({"~"}, [this] { return ParseProduct(); });
}
ExpressionPtr Parser::ParseProduct() {
  return Binary({"*", "/", "//", "%"}, [this] { return ParsePower(); });
}
ExpressionPtr Parser::ParsePower() {
  return Binary({"**"}, [this] { return ParseUnary(); });
}

ExpressionPtr Parser::ParseUnary(bool filters) {
  const Nested nested(this);
  ExpressionPtr made;
  if (Now().IsSign("-") || Now().IsSign("+")) {
    made = New(Now().IsSign("-") ? Kind::kNegative : Kind::kPositive);
    Advance();
    made->parts.push_back(ParseUnary(/*filters=*/false));
  } else {
    made = ParsePrimary();
  }
  made = ParsePostfix(std::move(made));
  return filters ? ParseFilters(std::move(made)) : std::move(made);
}

ExpressionPtr Parser::ParsePrimary() {
  ExpressionPtr made = New(Kind::kConstant);
  if (Now().kind == TokenKind::kName) {
    const std::string& name = Now().text;
    if (name == "true" || name == "True") {
      made->value = true;
    } else if (name == "false" || name == "False") {
      made->value = false;
    } else if (name != "none" && name != "None") {
      made->kind = Kind::kName;
      made->name = name;
    }
    Advance();
  } else if (Now().kind == TokenKind::kString) {
    std::string text;
    for (; Now().kind == TokenKind::kString; Advance()) {
      text += Now().value.string();
    }
    made->value = std::move(text);
  } else if (Now().kind == TokenKind::kNumber) {
    made->value = Now().value;
    Advance();
  } else if (Now().IsSign("(")) {
    Advance();
    if (Now().IsSign(")")) {
      made->kind = Kind::kTuple;
    } else {
      made = ParseTuple();
    }
    WantSign(")");
  } else if (Now().IsSign("[")) {
    return ParseList();
  } else if (Now().IsSign("{")) {
    return ParseDict();
  } else {
    Fail(absl::StrCat("expected an expression, found ", Shown()));
  }
  return made;
}

ExpressionPtr Parser::ParseList() {
  ExpressionPtr made = New(Kind::kList);
  Advance();
  while (!Now().IsSign("]")) {
    if (!made->parts.empty()) WantSign(",");
    if (Now().IsSign("]")) break;
    made->parts.push_back(ParseExpression());
  }
  Advance();
  return made;
}

ExpressionPtr Parser::ParseDict() {
  ExpressionPtr made = New(Kind::kDict);
  Advance();
  while (!Now().IsSign("}")) {
    if (!made->parts.empty()) WantSign(",");
    if (Now().IsSign("}")) break;
    made->parts.push_back(ParseExpression());
    WantSign(":");
    made->parts.push_back(ParseExpression());
  }
  Advance();
  return made;
}

ExpressionPtr Parser::ParsePostfix(ExpressionPtr made) {
  while (true) {
    if (Now().IsSign(".") || Now().IsSign("[")) {
      made = ParseSubscript(std::move(made));
    } else if (Now().IsSign("(")) {
      made = NewOf(Kind::kCall, std::move(made));
      ParseArguments(made.get());
    } else {
      return made;
    }
  }
}

ExpressionPtr Parser::ParseFilters(ExpressionPtr made) {
  while (true) {
    if (Now().IsSign("|")) {
      made = ParseFilter(std::move(made));
    } else if (Now().IsName("is")) {
      made = ParseTest(std::move(made));
    } else if (Now().IsSign("(")) {
      made = NewOf(Kind::kCall, std::move(made));
      ParseArguments(made.get());
    } else {
      return made;
    }
  }
}

ExpressionPtr Parser::ParseFilter(ExpressionPtr of) {
  Advance();  // the bar
  ExpressionPtr made = NewOf(Kind::kFilter, std::move(of));
  made->name = WantName();
  while (SkipSign(".")) absl::StrAppend(&made->name, ".", WantName());
  if (Now().IsSign("(")) ParseArguments(made.get());
  return made;
}

ExpressionPtr Parser::ParseTest(ExpressionPtr of) {
  Advance();  // is
  const bool negated = SkipName("not");
  ExpressionPtr made = NewOf(Kind::kTest, std::move(of));
  made->name = WantName();
  while (SkipSign(".")) absl::StrAppend(&made->name, ".", WantName());
  const TokenKind kind = Now().kind;
  if (Now().IsSign("(")) {
    ParseArguments(made.get());
  } else if ((kind == TokenKind::kName || kind == TokenKind::kString ||
              kind == TokenKind::kNumber || Now().IsSign("[") ||
              Now().IsSign("{")) &&
             !Now().IsName("else") && !Now().IsName("or") &&
             !Now().IsName("and")) {
    if (Now().IsName("is")) Fail("tests can't be chained with `is`");
    made->arguments.push_back(ParsePostfix(ParsePrimary()));
  }
  return negated ? NewOf(Kind::kNot, std::move(made)) : std::move(made);
}

ExpressionPtr Parser::ParseSubscript(ExpressionPtr of) {
  if (SkipSign(".")) {
    if (Now().kind == TokenKind::kNumber) {
      ExpressionPtr item = NewOf(Kind::kItem, std::move(of));
      item->parts.push_back(New(Kind::kConstant));
      item->parts.back()->value = Now().value;
      Advance();
      return item;
    }
    ExpressionPtr made = NewOf(Kind::kAttribute, std::move(of));
    made->name = WantName();
    return made;
  }
  Advance();
  ExpressionPtr made = NewOf(Kind::kItem, std::move(of));
  ExpressionPtr index = ParseIndex();
  if (Now().IsSign(",")) {
    index = NewOf(Kind::kTuple, std::move(index));
    while (SkipSign(",")) index->parts.push_back(ParseIndex());
  }
  made->parts.push_back(std::move(index));
  WantSign("]");
  return made;
}

ExpressionPtr Parser::ParseIndex() {
  const Nested nested(this);
  ExpressionPtr first;
  if (!Now().IsSign(":")) {
    first = ParseExpression();
    if (!Now().IsSign(":")) return first;
  }
  Advance();
  ExpressionPtr slice = NewOf(Kind::kSlice, std::move(first));
  const auto part = [&]() -> ExpressionPtr {
    const bool none =
        Now().IsSign(":") || Now().IsSign("]") || Now().IsSign(",");
    return none ? nullptr : ParseExpression();
  };
  slice->parts.push_back(part());
  slice->parts.push_back(SkipSign(":") ? part() : nullptr);
  return slice;
}

void Parser::ParseArguments(Expression* made) {
  WantSign("(");
  bool any = false;
  while (!Now().IsSign(")")) {
    if (any) WantSign(",");
    if (Now().IsSign(")")) break;
    any = true;
    if (SkipSign("**")) {
      made->more_named = ParseExpression();
    } else if (SkipSign("*")) {
      made->more = ParseExpression();
    } else if (Now().kind == TokenKind::kName && After().IsSign("=")) {
      std::string name = WantName();
      Advance();
      made->named.emplace_back(std::move(name), ParseExpression());
    } else {
      if (!made->named.empty()) {
        Fail("an argument by place follows one by name");
      }
      made->arguments.push_back(ParseExpression());
    }
  }
  Advance();
}

}  // namespace

Parsed Parse(const std::string& source) { return Parser(source).Run(); }

}  // namespace capstan::jinja
