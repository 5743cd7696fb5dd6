// SPDX-License-Identifier: Apache-2.0
//
// The text of PTX (PTX ISA 9.0), as nvcc writes it, taken apart: kernels, their
// registers and shared variables, and statements whose operands are names yet.
#ifndef CAPSTAN_TESTING_PTX_MODULE_H_
#define CAPSTAN_TESTING_PTX_MODULE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::ptx {

struct Operand {
  enum class Kind {
    kName,     // a register, symbol or label
    kNumber,   // `number`: its bits
    kAddress,  // [name + number]; without a name: ""
    kList,     // {a, b}, or a|b
  };
  Kind kind = Kind::kName;
  std::string name;
  int64_t number = 0;
  std::vector<Operand> parts;
};

struct Statement {
  std::string guard;     // the predicate; "" for none
  bool negated = false;  // the guard
  std::string opcode;    // with its modifiers: "ld.global.v4.f32"
  std::vector<Operand> operands;
  int line = 0;  // of the PTX
  // Of the source, by the last .loc; file: a key of Module::files.
  int file = 0, source_line = 0;
};

// A parameter or a shared variable.
struct Variable {
  std::string name;
  int64_t align = 1, bytes = 0;
  bool dynamic = false;  // an array whose bytes the launch says
};

struct Kernel {
  std::string name;  // mangled
  std::vector<Variable> parameters, shared;
  std::map<std::string, bool> registers;  // true: a predicate
  std::vector<Statement> body;
  std::map<std::string, int> labels;  // the statement that each stands before
  int max_threads = 0;                // of a block; 0: not said
};

struct Module {
  std::string path;                  // for messages
  std::map<int, std::string> files;  // sources
  std::vector<Variable> shared;      // of all kernels
  std::vector<Kernel> kernels;
};

// An error names path and line.
absl::StatusOr<Module> Parse(const std::string& path, absl::string_view text);

}  // namespace capstan::ptx

#endif  // CAPSTAN_TESTING_PTX_MODULE_H_
