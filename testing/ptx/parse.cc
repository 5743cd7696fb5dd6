// SPDX-License-Identifier: Apache-2.0
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "testing/ptx/module.h"

namespace capstan::ptx {
namespace {

struct Token {
  absl::string_view text;  // of a string with its quotes; "" at the end
  int line;
};

bool InWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_$%.", c);
}

// Without comments.
std::vector<Token> Split(absl::string_view text) {
  std::vector<Token> tokens;
  int line = 1;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (text[i] == '\n') ++line;
    if (absl::StartsWith(text.substr(i), "//")) {
      end = std::min(text.find('\n', i), text.size());
    } else if (text[i] == '"') {
      end = std::min(text.find('"', i + 1), text.size() - 1) + 1;
      tokens.push_back({text.substr(i, end - i), line});
    } else if (InWord(text[i])) {
      while (end < text.size() && InWord(text[end])) ++end;
      tokens.push_back({text.substr(i, end - i), line});
    } else if (!std::isspace(static_cast<unsigned char>(text[i]))) {
      tokens.push_back({text.substr(i, 1), line});
    }
    i = end;
  }
  tokens.push_back({"", line});
  return tokens;
}

// Keeps the first error; then the rest of its calls does nothing.
class Parser {
 public:
  Parser(const std::string& path, absl::string_view text)
      : tokens_(Split(text)) {
    module_.path = path;
  }

  absl::StatusOr<Module> Run() {
    while (status_.ok() && !Peek().empty()) TopLevel();
    if (!status_.ok()) return status_;
    return std::move(module_);
  }

 private:
  absl::string_view Peek() const { return tokens_[at_].text; }
  int Line() const { return tokens_[at_].line; }
  absl::string_view Take() {
    const absl::string_view text = Peek();
    if (!text.empty()) ++at_;
    return text;
  }
  bool TakeIf(absl::string_view text) {
    if (Peek() != text || !status_.ok()) return false;
    Take();
    return true;
  }
  void Expect(absl::string_view text) {
    if (!TakeIf(text)) Fail(absl::StrCat("\"", text, "\""));
  }
  void Fail(absl::string_view expected) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(module_.path, ":", Line(), ": \"", Peek(), "\" where ",
                       expected, " is expected"));
    }
    at_ = tokens_.size() - 1;  // which ends all loops
  }
  void SkipLine() {
    const int line = Line();
    while (!Peek().empty() && Line() == line) Take();
  }
  void SkipSection() {  // which has no braces within
    while (!Peek().empty() && Peek() != "}") Take();
    Expect("}");
  }

  // Decimal, hexadecimal, or a float's bits.
  int64_t Number() {
    const bool negative = TakeIf("-");
    absl::string_view text = Peek();
    int base = 10;
    if (absl::ConsumePrefix(&text, "0x") || absl::ConsumePrefix(&text, "0f") ||
        absl::ConsumePrefix(&text, "0F") || absl::ConsumePrefix(&text, "0d") ||
        absl::ConsumePrefix(&text, "0D")) {
      base = 16;
    }
    const std::string digits(text);
    char* end = nullptr;
    const uint64_t value = std::strtoull(digits.c_str(), &end, base);
    if (digits.empty() || *end != '\0') {
      Fail("a number");
      return 0;
    }
    Take();
    return static_cast<int64_t>(negative ? 0 - value : value);
  }

  bool AtNumber() const {
    return Peek() == "-" ||
           (!Peek().empty() &&
            std::isdigit(static_cast<unsigned char>(Peek()[0])));
  }

  std::string Name() {
    if (Peek().empty() || !InWord(Peek()[0])) Fail("a name");
    return std::string(Take());
  }

  void TopLevel() {
    const absl::string_view text = Peek();
    if (text == ".version" || text == ".target" || text == ".address_size") {
      SkipLine();
    } else if (text == ".file") {
      Take();
      const int number = static_cast<int>(Number());
      module_.files[number] =
          std::string(absl::StripSuffix(absl::StripPrefix(Peek(), "\""), "\""));
      SkipLine();
    } else if (text == ".section") {
      SkipSection();
    } else if (text == ".visible" || text == ".weak" || text == ".extern") {
      Take();
    } else if (text == ".shared") {
      module_.shared.push_back(SharedVariable());
    } else if (text == ".entry") {
      Entry();
    } else {
      Fail("a directive that this parser knows");
    }
  }

  // [.align N] .type name [ [bytes] ]
  Variable OneVariable() {
    Variable variable;
    if (TakeIf(".align")) variable.align = Number();
    const absl::string_view type = Take();
    int bits = 0;
    if (type.size() < 3 || !absl::SimpleAtoi(type.substr(2), &bits)) {
      Fail("a type");
      return variable;
    }
    variable.bytes = bits / 8;
    variable.align = std::max(variable.align, variable.bytes);
    variable.name = Name();
    if (!TakeIf("[")) return variable;
    variable.dynamic = Peek() == "]";
    variable.bytes *= variable.dynamic ? 0 : Number();
    Expect("]");
    return variable;
  }

  Variable SharedVariable() {
    Expect(".shared");
    const Variable variable = OneVariable();
    Expect(";");
    return variable;
  }

  void Entry() {
    Expect(".entry");
    Kernel kernel;
    kernel.name = Name();
    if (TakeIf("(") && !TakeIf(")")) {
      do {
        Expect(".param");
        kernel.parameters.push_back(OneVariable());
      } while (TakeIf(","));
      Expect(")");
    }
    while (status_.ok() && Peek() != "{") {
      if (TakeIf(".maxntid")) {
        int64_t threads = Number();
        while (TakeIf(",")) threads *= Number();
        kernel.max_threads = static_cast<int>(threads);
      } else if (Peek() == ".minnctapersm") {
        SkipLine();
      } else {
        Fail("{");
      }
    }
    Body(kernel);
    module_.kernels.push_back(std::move(kernel));
  }

  void Body(Kernel& kernel) {
    int depth = 0, file = 0, source_line = 0;
    do {
      const absl::string_view text = Peek();
      if (text.empty()) return Fail("}");
      if (text == "{" || text == "}") {  // a scope within is inline assembly's
        depth += Take() == "{" ? 1 : -1;
      } else if (text == ".reg") {
        Registers(kernel);
      } else if (text == ".shared") {
        kernel.shared.push_back(SharedVariable());
      } else if (text == ".pragma") {
        SkipLine();
      } else if (text == ".loc") {
        Take();
        file = static_cast<int>(Number());
        const int line = static_cast<int>(Number());
        if (line != 0) source_line = line;  // 0: no place of its own
        SkipLine();
      } else if (tokens_[at_ + 1].text == ":") {
        kernel.labels[Name()] = static_cast<int>(kernel.body.size());
        Expect(":");
      } else {
        Statement statement = OneStatement();
        statement.file = file;
        statement.source_line = source_line;
        kernel.body.push_back(std::move(statement));
      }
    } while (depth > 0);
  }

  // .reg .type name or name<count>, ...;
  void Registers(Kernel& kernel) {
    Expect(".reg");
    const bool predicate = Take() == ".pred";
    do {
      const std::string name = Name();
      if (!TakeIf("<")) {
        kernel.registers[name] = predicate;
        continue;
      }
      const int64_t count = Number();
      for (int64_t i = 0; i < count; ++i) {
        kernel.registers[absl::StrCat(name, i)] = predicate;
      }
      Expect(">");
    } while (TakeIf(","));
    Expect(";");
  }

  Statement OneStatement() {
    Statement statement;
    if (TakeIf("@")) {
      statement.negated = TakeIf("!");
      statement.guard = Name();
    }
    statement.line = Line();
    statement.opcode = Name();
    if (TakeIf(";")) return statement;
    do {
      Operand operand = OneOperand();
      if (TakeIf("|")) {
        Operand pair;
        pair.kind = Operand::Kind::kList;
        pair.parts = {std::move(operand), OneOperand()};
        operand = std::move(pair);
      }
      statement.operands.push_back(std::move(operand));
    } while (TakeIf(","));
    Expect(";");
    return statement;
  }

  Operand OneOperand() {
    Operand operand;
    if (TakeIf("{")) {
      operand.kind = Operand::Kind::kList;
      do {
        operand.parts.push_back(OneOperand());
      } while (TakeIf(","));
      Expect("}");
    } else if (TakeIf("[")) {
      operand.kind = Operand::Kind::kAddress;
      if (!AtNumber()) operand.name = Name();
      if (TakeIf("+") || AtNumber()) operand.number = Number();
      Expect("]");
    } else if (AtNumber()) {
      operand.kind = Operand::Kind::kNumber;
      operand.number = Number();
    } else {
      operand.name = Name();
    }
    return operand;
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  Module module_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Module> Parse(const std::string& path, absl::string_view text) {
  return Parser(path, text).Run();
}

}  // namespace capstan::ptx
