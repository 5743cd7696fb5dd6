// SPDX-License-Identifier: Apache-2.0
//
// What instructions compute, exactly as PTX ISA 9.0 says: the operations that
// nvcc emits for the kernels of this repository, and no others.
#ifndef CAPSTAN_TESTING_PTX_OPERATIONS_H_
#define CAPSTAN_TESTING_PTX_OPERATIONS_H_

#include "absl/strings/string_view.h"
#include "testing/ptx/program.h"

namespace capstan::ptx {

struct Operation {
  Execute execute = nullptr;
  // The kinds of its operands: "r=rrp" is a register's value from those of two
  // registers and a predicate. Lists count as so many operands.
  absl::string_view operands;
};

// By opcode with all modifiers. That of a move from or to a list {a, b} ends in
// ".pack" or ".unpack". Null if unknown.
const Operation* FindOperation(absl::string_view opcode);

}  // namespace capstan::ptx

#endif  // CAPSTAN_TESTING_PTX_OPERATIONS_H_
