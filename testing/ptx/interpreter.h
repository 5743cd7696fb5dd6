// SPDX-License-Identifier: Apache-2.0
//
// Runs the PTX that nvcc makes of kernels, on the host, and checks what they do
// on the way; README.md says what for. The blocks of a launch run one after
// another; the threads of a block are warps of 32 lanes, each until it waits
// for others. Lanes of a warp that are at different instructions go on
// separately, those that are behind first.
#ifndef CAPSTAN_TESTING_PTX_INTERPRETER_H_
#define CAPSTAN_TESTING_PTX_INTERPRETER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "testing/ptx/memory.h"
#include "testing/ptx/module.h"
#include "testing/ptx/program.h"

namespace capstan::ptx {

struct Dim3 {
  int x = 1, y = 1, z = 1;
  int Count() const { return x * y * z; }
};

// Not thread-safe.
class Interpreter {
 public:
  // Adds the kernels of a module. An error names path and line.
  absl::Status Load(const std::string& path, absl::string_view text);

  // Runs a kernel, by its mangled name, to the end or to its first error, which
  // says kernel, instruction, source line, block and thread. `arguments`: where
  // each parameter's value is. Pointers to global memory are the host's; what
  // they point to must be in Allocations::Global().
  absl::Status Launch(const std::string& kernel, Dim3 grid, Dim3 block,
                      int64_t dynamic_shared_bytes,
                      const void* const* arguments);

  // From the next launch on the last block and the last warp run first.
  void RunBackwards(bool backwards) { backwards_ = backwards; }

  // By mangled name, with what has been counted so far.
  const std::map<std::string, Program>& Programs() const { return programs_; }

 private:
  std::vector<std::unique_ptr<Module>> modules_;
  std::map<std::string, Program> programs_;
  Clock clock_;
  bool backwards_ = false;
};

}  // namespace capstan::ptx

#endif  // CAPSTAN_TESTING_PTX_INTERPRETER_H_
