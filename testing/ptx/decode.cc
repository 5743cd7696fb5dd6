// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "testing/ptx/operations.h"
#include "testing/ptx/program.h"

namespace capstan::ptx {
namespace {

// Shared variables begin at multiples of it, with so much between them at
// least: an access beyond one's end isn't in the next.
constexpr int64_t kGap = 128;

int64_t RoundUp(int64_t x, int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

// "%ctaid.x", if it is one.
bool FindSpecial(const std::string& name, Special* special, int* axis) {
  static const auto* const specials =
      new std::map<std::string, Special>{{"%tid", Special::kThread},
                                         {"%ntid", Special::kThreads},
                                         {"%ctaid", Special::kBlock},
                                         {"%nctaid", Special::kBlocks}};
  const size_t dot = name.find('.');
  const auto it = specials->find(name.substr(0, dot));
  if (it == specials->end() || name.size() != dot + 2) return false;
  *special = it->second;
  *axis = name.back() - 'x';
  return *axis >= 0 && *axis < 3;
}

class Decoder {
 public:
  Decoder(const Module& module, const Kernel& kernel) {
    program_.module = &module;
    program_.kernel = &kernel;
  }

  absl::StatusOr<Program> Run() {
    for (const auto& [name, predicate] : program_.kernel->registers) {
      (predicate ? predicates_ : registers_)[name] =
          predicate ? program_.predicates++ : program_.registers++;
    }
    PlaceParameters();
    PlaceShared();
    for (const Statement& statement : program_.kernel->body) {
      Instruction instruction;
      const absl::Status status = One(statement, instruction);
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(program_.module->path, ":", statement.line, ": ",
                         statement.opcode, ": ", status.message()));
      }
      program_.code.push_back(instruction);
    }
    if (!Ends()) {
      return absl::InvalidArgumentError(
          absl::StrCat(program_.module->path, ": the kernel ",
                       program_.kernel->name, " has no end"));
    }
    program_.counts.resize(program_.code.size());
    return std::move(program_);
  }

 private:
  // Whether no way leads beyond the last instruction.
  bool Ends() const {
    if (program_.code.empty()) return false;
    for (const auto& [label, at] : program_.kernel->labels) {
      if (at == static_cast<int>(program_.code.size())) return false;
    }
    const Instruction& last = program_.code.back();
    return last.guard == kNone &&
           (last.kind == Kind::kExit || last.kind == Kind::kBranch);
  }

  void PlaceParameters() {
    int64_t at = 0;
    for (const Variable& parameter : program_.kernel->parameters) {
      at = RoundUp(at, parameter.align);
      program_.parameters.push_back(at);
      symbols_[parameter.name] = static_cast<uint64_t>(at);
      at += parameter.bytes;
    }
    program_.parameter_bytes = at;
  }

  void PlaceShared() {
    std::vector<const Variable*> all;
    for (const Variable& v : program_.module->shared) all.push_back(&v);
    for (const Variable& v : program_.kernel->shared) all.push_back(&v);
    std::stable_partition(all.begin(), all.end(),
                          [](const Variable* v) { return !v->dynamic; });
    int64_t at = kGap;
    for (const Variable* v : all) {
      if (!IsUsed(v->name)) continue;
      program_.shared.push_back({v, at});
      symbols_[v->name] = static_cast<uint64_t>(at);
      program_.shared_bytes =
          RoundUp(program_.shared_bytes, v->align) + v->bytes;
      if (v->dynamic) program_.dynamic_begin = at;
      at = RoundUp(at + v->bytes + kGap, kGap);
    }
    if (program_.dynamic_begin == 0) program_.dynamic_begin = at;
  }

  bool IsUsed(const std::string& symbol) const {
    for (const Statement& statement : program_.kernel->body) {
      for (const Operand& operand : statement.operands) {
        if (operand.name == symbol) return true;
      }
    }
    return false;
  }

  int Constant(uint64_t value) {
    const auto [it, is_new] = constants_.emplace(value, program_.registers);
    if (is_new) program_.constants.push_back({program_.registers++, value});
    return it->second;
  }

  absl::StatusOr<int> Predicate(const std::string& name) {
    const auto it = predicates_.find(name);
    if (it != predicates_.end()) return it->second;
    return absl::InvalidArgumentError(absl::StrCat(name, " is no predicate"));
  }

  // A register that has, or gets, the operand's value.
  absl::StatusOr<int> Register(const Operand& operand) {
    if (operand.kind == Operand::Kind::kNumber) {
      return Constant(static_cast<uint64_t>(operand.number));
    }
    const std::string& name = operand.name;
    const auto it = registers_.find(name);
    if (it != registers_.end()) return it->second;
    const auto symbol = symbols_.find(name);
    if (symbol != symbols_.end()) return Constant(symbol->second);
    Program::PlaceRegister place = {program_.registers, Special::kThread, 0};
    if (!FindSpecial(name, &place.special, &place.axis)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is neither a register nor a symbol"));
    }
    registers_[name] = program_.registers++;
    program_.places.push_back(place);
    return place.number;
  }

  absl::Status One(const Statement& statement, Instruction& instruction) {
    if (!statement.guard.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(instruction.guard, Predicate(statement.guard));
      instruction.negated = statement.negated;
    }
    const std::string& opcode = statement.opcode;
    const std::vector<Operand>& operands = statement.operands;
    if (opcode == "bra" || opcode == "bra.uni") {
      instruction.kind = Kind::kBranch;
      const auto& labels = program_.kernel->labels;
      const auto it =
          operands.size() == 1 ? labels.find(operands[0].name) : labels.end();
      if (it == labels.end()) return absl::InvalidArgumentError("no label");
      instruction.target = it->second;
      return absl::OkStatus();
    }
    if (opcode == "ret") {
      instruction.kind = Kind::kExit;
      return absl::OkStatus();
    }
    if (opcode == "bar.sync") {
      instruction.kind = Kind::kBarrier;
      const bool of_all = operands.size() == 1 &&
                          operands[0].kind == Operand::Kind::kNumber &&
                          operands[0].number == 0;
      return of_all ? absl::OkStatus()
                    : absl::InvalidArgumentError(
                          "only barrier 0 of the whole block is known");
    }
    if (opcode == "shfl.sync.bfly.b32") {
      instruction.kind = Kind::kShuffle;
      return Flatten(operands, "rp=rrrr", instruction);
    }
    const std::vector<std::string> words = absl::StrSplit(opcode, '.');
    if (words[0] == "ld" || words[0] == "st") {
      return Access(words, operands, instruction);
    }
    return Compute(opcode, operands, instruction);
  }

  absl::Status Compute(const std::string& opcode,
                       const std::vector<Operand>& operands,
                       Instruction& instruction) {
    std::string key = opcode;
    if (operands.size() == 2) {
      if (operands[0].kind == Operand::Kind::kList) key += ".unpack";
      if (operands[1].kind == Operand::Kind::kList) key += ".pack";
    }
    const Operation* operation = FindOperation(key);
    if (operation == nullptr) {
      return absl::InvalidArgumentError(
          "an unknown instruction: teach testing/ptx/operations.cc what it "
          "computes");
    }
    instruction.execute = operation->execute;
    return Flatten(operands, operation->operands, instruction);
  }

  // Operands of the kinds that Operation::operands describes.
  absl::Status Flatten(const std::vector<Operand>& operands,
                       absl::string_view kinds, Instruction& instruction) {
    std::vector<Operand> flat;
    for (const Operand& operand : operands) {
      if (operand.kind == Operand::Kind::kAddress) {
        return absl::InvalidArgumentError("an address is no operand of it");
      }
      if (operand.kind != Operand::Kind::kList) flat.push_back(operand);
      flat.insert(flat.end(), operand.parts.begin(), operand.parts.end());
    }
    if (flat.size() != kinds.size() - 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          flat.size(), " operands, where ", kinds.size() - 1, " are known"));
    }
    const int results = static_cast<int>(kinds.find('='));
    for (int i = 0; i < static_cast<int>(flat.size()); ++i) {
      const char kind = kinds[i < results ? i : i + 1];
      int& number =
          i < results ? instruction.to[i] : instruction.from[i - results];
      if (kind == 'p') {
        CAPSTAN_ASSIGN_OR_RETURN(number, Predicate(flat[i].name));
      } else {
        CAPSTAN_ASSIGN_OR_RETURN(number, Register(flat[i]));
      }
    }
    return absl::OkStatus();
  }

  // ld and st: [.space][.hint][.v2|.v4].type
  absl::Status Access(const std::vector<std::string>& words,
                      const std::vector<Operand>& operands,
                      Instruction& instruction) {
    static const auto* const spaces =
        new std::map<std::string, Space>{{"global", Space::kGlobal},
                                         {"shared", Space::kShared},
                                         {"param", Space::kParameter}};
    static const auto* const hints =  // of caching
        new std::map<std::string, int>{
            {"ca", 0}, {"cg", 0}, {"cs", 0}, {"nc", 0}, {"wb", 0}};
    const bool loads = words[0] == "ld";
    instruction.kind = loads ? Kind::kLoad : Kind::kStore;
    size_t at = 1;
    if (at < words.size() && spaces->count(words[at]) != 0) {
      instruction.space = spaces->at(words[at++]);
    }
    if (at < words.size() && hints->count(words[at]) != 0) ++at;
    instruction.count = 1;
    if (at < words.size() && (words[at] == "v2" || words[at] == "v4")) {
      instruction.count = words[at++][1] - '0';
    }
    int bits = 0;
    if (at + 1 != words.size() ||
        !absl::SimpleAtoi(words[at].substr(1), &bits) || bits % 8 != 0 ||
        bits > 64 || words[at][0] == 's' || operands.size() != 2) {
      return absl::InvalidArgumentError(
          "an unknown load or store: teach it to testing/ptx/decode.cc");
    }
    instruction.width = bits / 8;
    const Operand& address = operands[loads ? 1 : 0];
    const Operand& values = operands[loads ? 0 : 1];
    if (address.kind != Operand::Kind::kAddress) {
      return absl::InvalidArgumentError("no address");
    }
    instruction.offset = address.number;
    Operand base;
    base.name = address.name;
    base.kind =
        base.name.empty() ? Operand::Kind::kNumber : Operand::Kind::kName;
    CAPSTAN_ASSIGN_OR_RETURN(instruction.address, Register(base));
    const std::vector<Operand> list = values.kind == Operand::Kind::kList
                                          ? values.parts
                                          : std::vector<Operand>{values};
    if (static_cast<int>(list.size()) != instruction.count) {
      return absl::InvalidArgumentError("another number of values");
    }
    for (int i = 0; i < instruction.count; ++i) {
      int& number = loads ? instruction.to[i] : instruction.from[i];
      CAPSTAN_ASSIGN_OR_RETURN(number, Register(list[i]));
    }
    return absl::OkStatus();
  }

  Program program_;
  std::map<std::string, int> registers_, predicates_;
  std::map<std::string, uint64_t> symbols_;  // addresses
  std::map<uint64_t, int> constants_;
};

}  // namespace

absl::StatusOr<Program> Decode(const Module& module, const Kernel& kernel) {
  return Decoder(module, kernel).Run();
}

}  // namespace capstan::ptx
