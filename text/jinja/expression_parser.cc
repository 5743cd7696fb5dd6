// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/jinja/builtin.h"
#include "text/jinja/parser.h"

namespace capstan::jinja {

using Kind = ExpressionKind;

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
  const size_t unknown = unknown_.size();
  ExpressionPtr made = ParseOr();
  ExpressionPtr* last = &made;  // what the next `if` is about
  while (Now().IsName("if")) {
    ExpressionPtr choice = NewOf(Kind::kIf, std::move(*last));
    Advance();
    choice->parts.push_back(ParseOr());
    const bool otherwise = SkipName("else");
    choice->parts.push_back(otherwise ? ParseOr() : nullptr);
    *last = std::move(choice);
    if (otherwise) last = &(*last)->parts[2];
    unknown_.resize(unknown);
  }
  return made;
}

ExpressionPtr Parser::ParseOr() {
  const auto logic = [this](Kind kind, const char* name, const auto& operand) {
    ExpressionPtr made = operand();
    while (Now().IsName(name)) {
      made = NewOf(kind, std::move(made));
      Advance();
      made->parts.push_back(operand());
    }
    return made;
  };
  return logic(Kind::kOr, "or", [&] {
    return logic(Kind::kAnd, "and", [this] { return ParseNot(); });
  });
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
      if (name == "varargs" || name == "kwargs") {
        Fail(absl::StrCat("macros have no `", name, "` here"));
      }
      uses_caller_ |= name == "caller";
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

std::string Parser::ParseFunctionName(const char* kind,
                                      bool (*is_known)(absl::string_view)) {
  const int line = Now().line;
  std::string name = WantName();
  while (SkipSign(".")) absl::StrAppend(&name, ".", WantName());
  if (!in_if_ && !is_known(name)) {
    unknown_.push_back(
        absl::StrCat("line ", line, ": there is no ", kind, " `", name, "`"));
  }
  return name;
}

ExpressionPtr Parser::ParseFilter(ExpressionPtr of) {
  Advance();  // the bar
  ExpressionPtr made = NewOf(Kind::kFilter, std::move(of));
  made->name = ParseFunctionName("filter", IsFilter);
  if (Now().IsSign("(")) ParseArguments(made.get());
  return made;
}

ExpressionPtr Parser::ParseTest(ExpressionPtr of) {
  Advance();  // is
  const bool negated = SkipName("not");
  ExpressionPtr made = NewOf(Kind::kTest, std::move(of));
  made->name = ParseFunctionName("test", IsTest);
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
    if (made->more_named != nullptr) Fail("an argument follows `**`");
    if (SkipSign("**")) {
      made->more_named = ParseExpression();
    } else if (SkipSign("*")) {
      if (made->more != nullptr) Fail("there is a second `*`");
      made->more = ParseExpression();
    } else if (Now().kind == TokenKind::kName && After().IsSign("=")) {
      std::string name = WantName();
      for (const auto& [other, value] : made->named) {
        if (other == name) {
          Fail(absl::StrCat("the argument `", name, "` is given twice"));
        }
      }
      Advance();
      made->named.emplace_back(std::move(name), ParseExpression());
    } else {
      if (!made->named.empty() || made->more != nullptr) {
        Fail("an argument by place follows one by name or `*`");
      }
      made->arguments.push_back(ParseExpression());
    }
  }
  Advance();
}

}  // namespace capstan::jinja
