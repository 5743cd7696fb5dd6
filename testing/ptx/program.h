// SPDX-License-Identifier: Apache-2.0
//
// A kernel ready to run: operands are numbers of registers, and each statement
// has the function that executes it for the lanes of a warp.
#ifndef CAPSTAN_TESTING_PTX_PROGRAM_H_
#define CAPSTAN_TESTING_PTX_PROGRAM_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "testing/ptx/module.h"

namespace capstan::ptx {

constexpr int kWarp = 32;

// A register of a warp: each lane's bits, with zeros above its type's.
using Lanes = std::array<uint64_t, kWarp>;

struct Registers {
  std::vector<Lanes> values;
  std::vector<uint32_t> predicates;  // a bit a lane
};

struct Instruction;
// Computes for the lanes whose bits are set in `lanes`.
using Execute = void (*)(const Instruction& instruction, Registers& registers,
                         uint32_t lanes);

enum class Kind {
  kCompute,
  kLoad,
  kStore,
  kBranch,
  kShuffle,  // shfl.sync.bfly
  kBarrier,  // of the block
  kExit,
};

enum class Space { kGeneric, kGlobal, kShared, kParameter };

constexpr int kNone = -1;

// Addresses of shared memory lie here among generic ones, where the host has
// none.
constexpr uint64_t kSharedWindow = uint64_t{1} << 56;

struct Instruction {
  Kind kind = Kind::kCompute;
  Execute execute = nullptr;
  // Numbers of registers; those of predicates are a sequence of their own.
  int guard = kNone;
  bool negated = false;
  std::array<int, 4> to = {kNone, kNone, kNone, kNone};
  std::array<int, 4> from = {kNone, kNone, kNone, kNone};
  int target = 0;  // of a branch: an instruction
  // Of a load or store: `count` neighbours of `width` bytes at [address +
  // offset].
  Space space = Space::kGeneric;
  int width = 0, count = 0;
  int address = kNone;
  int64_t offset = 0;

  int Bytes() const { return width * count; }
};

// What an instruction has cost, over all launches, in numbers of a warp.
struct Counts {
  int64_t executions = 0;
  // Of a load or store of shared memory: passes over its 32 banks, of 4 bytes,
  // and those that the bytes need at least.
  int64_t passes = 0, least_passes = 0;
  // Of one of global memory: sectors of 32 bytes, and those that the bytes need
  // at least.
  int64_t sectors = 0, least_sectors = 0;
};

// What a lane reads of its place.
enum class Special { kThread, kThreads, kBlock, kBlocks };

struct Program {
  const Module* module = nullptr;
  const Kernel* kernel = nullptr;
  std::vector<Instruction> code;  // as kernel->body
  std::vector<Counts> counts;     // by instruction
  int registers = 0, predicates = 0;
  // Registers that don't change: immediates and symbols' addresses, and what
  // is known at the launch (axis: 0, 1 or 2).
  std::vector<std::pair<int, uint64_t>> constants;
  struct PlaceRegister {
    int number;
    Special special;
    int axis;
  };
  std::vector<PlaceRegister> places;
  // Bytes that the parameters begin at, and of all.
  std::vector<int64_t> parameters;
  int64_t parameter_bytes = 0;
  // Shared variables, where each begins; the dynamic one, if any, is last. Gaps
  // are between them.
  struct Placed {
    const Variable* variable;
    int64_t begin;
  };
  std::vector<Placed> shared;
  int64_t shared_bytes = 0;   // of variables, as the launch's limit counts them
  int64_t dynamic_begin = 0;  // of what the launch adds
};

// `module` must outlive the program. An error names path and line: what isn't
// known isn't skipped.
absl::StatusOr<Program> Decode(const Module& module, const Kernel& kernel);

}  // namespace capstan::ptx

#endif  // CAPSTAN_TESTING_PTX_PROGRAM_H_
