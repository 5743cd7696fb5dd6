// SPDX-License-Identifier: Apache-2.0
#include "testing/ptx/interpreter.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "testing/ptx/report.h"

namespace capstan::ptx {
namespace {

constexpr int64_t kMostShared = 48 << 10;  // bytes of a block, unless asked for
constexpr int kMostThreads = 1024;

// Lanes of a warp that are at the same instruction.
struct Group {
  int at;
  uint32_t lanes;
};

struct Warp {
  Registers registers;
  int first_thread = 0;
  uint32_t alive = 0;
  uint32_t shuffle = 0;  // when all that are alive last took part in one
  std::vector<Group> ready, at_shuffle, at_barrier;
};

std::string Text(Dim3 d) {
  return absl::StrCat("(", d.x, ", ", d.y, ", ", d.z, ")");
}

Dim3 IndexOf(int number, Dim3 size) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

int FirstLane(uint32_t lanes) { return __builtin_ctz(lanes); }

class Run {
 public:
  Run(Program& program, Dim3 grid, Dim3 block, int64_t dynamic_bytes,
      const uint8_t* parameters, bool backwards, Clock& clock)
      : program_(program),
        grid_(grid),
        block_(block),
        backwards_(backwards),
        clock_(clock),
        memory_(program, dynamic_bytes, parameters),
        warps_((block.Count() + kWarp - 1) / kWarp) {
    for (size_t i = 0; i < warps_.size(); ++i) {
      Warp& warp = warps_[i];
      warp.first_thread = static_cast<int>(i) * kWarp;
      warp.registers.values.resize(program.registers);
      warp.registers.predicates.resize(program.predicates);
      for (const auto& [number, value] : program.constants) {
        warp.registers.values[number].fill(value);
      }
    }
  }

  absl::Status All() {
    clock_.launch = ++clock_.now;
    const int blocks = grid_.Count();
    for (int b = 0; b < blocks && error_.empty(); ++b) {
      block_index_ = IndexOf(backwards_ ? blocks - 1 - b : b, grid_);
      Block();
    }
    if (error_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(error_);
  }

 private:
  void Block() {
    clock_.block = clock_.barrier = ++clock_.now;
    memory_.Clear();
    for (Warp& warp : warps_) Begin(warp);
    bool goes_on = true;
    while (goes_on) {
      for (size_t i = 0; i < warps_.size() && error_.empty(); ++i) {
        RunWarp(warps_[backwards_ ? warps_.size() - 1 - i : i]);
      }
      if (error_.empty()) error_ = unwritten_;
      if (!error_.empty()) return;
      goes_on = Release();
    }
  }

  // All lanes at the first instruction.
  void Begin(Warp& warp) {
    const int lanes = std::min(kWarp, block_.Count() - warp.first_thread);
    warp.alive = lanes == kWarp ? 0xffffffff : (uint32_t{1} << lanes) - 1;
    warp.ready = {{0, warp.alive}};
    warp.shuffle = clock_.now;
    for (const Program::PlaceRegister& place : program_.places) {
      for (int lane = 0; lane < kWarp; ++lane) {
        const Dim3 thread = IndexOf(warp.first_thread + lane, block_);
        const Dim3 all[] = {thread, block_, block_index_, grid_};
        const Dim3& d = all[static_cast<int>(place.special)];
        const int value = place.axis == 0 ? d.x : place.axis == 1 ? d.y : d.z;
        warp.registers.values[place.number][lane] =
            static_cast<uint64_t>(value);
      }
    }
  }

  // Until each lane waits for the block or has ended. The group that is behind
  // goes first, so that groups meet where branches do.
  void RunWarp(Warp& warp) {
    while (!warp.ready.empty() && error_.empty()) {
      Group group = {std::numeric_limits<int>::max(), 0};
      for (const Group& g : warp.ready) group.at = std::min(group.at, g.at);
      int next = std::numeric_limits<int>::max();
      std::vector<Group> others;
      for (const Group& g : warp.ready) {
        if (g.at == group.at) {
          group.lanes |= g.lanes;
        } else {
          others.push_back(g);
          next = std::min(next, g.at);
        }
      }
      warp.ready.swap(others);
      RunGroup(warp, group, next);
    }
    if (error_.empty() && !warp.at_shuffle.empty()) {
      const Group& group = warp.at_shuffle[0];
      Fail(group.at, warp.first_thread + FirstLane(group.lanes),
           "waits for lanes of its warp that don't come");
    }
  }

  // Until the group divides, waits, ends or reaches instruction `next`.
  void RunGroup(Warp& warp, Group group, int next) {
    do {
      const Instruction& i = program_.code[group.at];
      uint32_t lanes = group.lanes;
      if (i.guard != kNone) {
        const uint32_t guard = warp.registers.predicates[i.guard];
        lanes &= i.negated ? ~guard : guard;
      }
      ++program_.counts[group.at].executions;
      if (i.kind == Kind::kCompute) {
        if (lanes != 0) i.execute(i, warp.registers, lanes);
        ++group.at;
      } else if (i.kind == Kind::kLoad || i.kind == Kind::kStore) {
        if (lanes != 0 && !Access(warp, group.at, lanes)) return;
        ++group.at;
      } else if (!Control(warp, i, lanes, group)) {
        return;
      }
    } while (group.at < next);
    warp.ready.push_back(group);
  }

  // Of the group's lanes `lanes` do it. False: the group is among the warp's.
  bool Control(Warp& warp, const Instruction& i, uint32_t lanes, Group& group) {
    const uint32_t others = group.lanes & ~lanes;
    if (lanes == 0) {
      ++group.at;
      return true;
    }
    if (i.kind == Kind::kBranch && others == 0) {
      group.at = i.target;
      return true;
    }
    if (others != 0) warp.ready.push_back({group.at + 1, others});
    if (i.kind == Kind::kBranch) {
      warp.ready.push_back({i.target, lanes});
    } else if (i.kind == Kind::kExit) {
      warp.alive &= ~lanes;
    } else if (i.kind == Kind::kBarrier) {
      warp.at_barrier.push_back({group.at, lanes});
    } else {
      Shuffle(warp, group.at, lanes);
    }
    return false;
  }

  // shfl.sync.bfly: when all lanes that the mask names are there.
  void Shuffle(Warp& warp, int at, uint32_t lanes) {
    const Instruction& i = program_.code[at];
    auto& waiting = warp.at_shuffle;
    for (auto it = waiting.begin(); it != waiting.end();) {
      if (it->at == at) lanes |= it->lanes;
      it = it->at == at ? waiting.erase(it) : it + 1;
    }
    Registers& r = warp.registers;
    const int first = FirstLane(lanes);
    const auto mask = static_cast<uint32_t>(r.values[i.from[3]][first]);
    if ((lanes & ~mask) != 0 || (mask & ~warp.alive) != 0) {
      Fail(at, warp.first_thread + first,
           absl::StrCat("its mask 0x", absl::Hex(mask),
                        " leaves out lanes that take part, or names some that "
                        "have ended"));
      return;
    }
    if (lanes != mask) {
      waiting.push_back({at, lanes});
      return;
    }
    const Lanes from = r.values[i.from[0]];
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
      const int lane = FirstLane(left);
      const int flip = static_cast<int>(r.values[i.from[1]][lane]) & 31;
      const int limits = static_cast<int>(r.values[i.from[2]][lane]);
      const int segment = limits >> 8 & 31, clamp = limits & 31;
      const int most = (lane & segment) | (clamp & ~segment);
      const bool inside = (lane ^ flip) <= most;
      const int other = inside ? lane ^ flip : lane;
      if (((lanes >> other) & 1) == 0) {
        Fail(at, warp.first_thread + lane,
             "takes from a lane that isn't there");
        return;
      }
      r.values[i.to[0]][lane] = from[other];
      uint32_t& predicate = r.predicates[i.to[1]];
      predicate = (predicate & ~(uint32_t{1} << lane)) |
                  static_cast<uint32_t>(inside) << lane;
    }
    if (lanes == warp.alive) warp.shuffle = ++clock_.now;
    warp.ready.push_back({at + 1, lanes});
  }

  // False after an error.
  bool Access(Warp& warp, int at, uint32_t lanes) {
    const Instruction& i = program_.code[at];
    Lanes addresses;
    const Lanes& base = warp.registers.values[i.address];
    for (int lane = 0; lane < kWarp; ++lane) {
      addresses[lane] = base[lane] + static_cast<uint64_t>(i.offset);
    }
    CountAccess(i, addresses, lanes, program_.counts[at]);
    std::string error;
    for (; lanes != 0; lanes &= lanes - 1) {
      const int lane = FirstLane(lanes);
      const int thread = warp.first_thread + lane;
      uint8_t* bytes = memory_.Access(i, addresses[lane],
                                      {clock_, thread, warp.shuffle}, &error);
      if (!error.empty()) {
        error = absl::StrCat(i.Bytes(), " bytes at 0x",
                             absl::Hex(addresses[lane]), ": ", error);
        if (bytes == nullptr) {
          Fail(at, thread, error);
          return false;
        }
        if (unwritten_.empty()) unwritten_ = Message(at, thread, error);
        error.clear();
      }
      Move(i, bytes, lane, warp.registers);
    }
    return true;
  }

  static void Move(const Instruction& i, uint8_t* bytes, int lane,
                   Registers& registers) {
    for (int k = 0; k < i.count; ++k) {
      uint8_t* value = bytes + k * i.width;
      if (i.kind == Kind::kStore) {
        std::memcpy(value, &registers.values[i.from[k]][lane], i.width);
      } else {
        uint64_t bits = 0;
        std::memcpy(&bits, value, i.width);
        registers.values[i.to[k]][lane] = bits;
      }
    }
  }

  // Lets all threads pass the barrier that they wait at. False: none is left,
  // or some don't come.
  bool Release() {
    const Warp* waiting = nullptr;
    for (const Warp& warp : warps_) {
      if (!warp.at_barrier.empty()) waiting = &warp;
    }
    if (waiting == nullptr) return false;
    const Group& barrier = waiting->at_barrier[0];
    int missing = 0;
    for (const Warp& warp : warps_) {
      missing += std::min(kWarp, block_.Count() - warp.first_thread);
      for (const Group& group : warp.at_barrier) {
        if (group.at == barrier.at) missing -= __builtin_popcount(group.lanes);
      }
    }
    if (missing > 0) {
      Fail(barrier.at, waiting->first_thread + FirstLane(barrier.lanes),
           absl::StrCat("waits at a barrier that ", missing, " of ",
                        block_.Count(), " threads don't reach"));
      return false;
    }
    clock_.barrier = ++clock_.now;
    for (Warp& warp : warps_) {
      for (const Group& g : warp.at_barrier) {
        warp.ready.push_back({g.at + 1, g.lanes});
      }
      warp.at_barrier.clear();
    }
    return true;
  }

  std::string Message(int at, int thread, const std::string& what) const {
    return absl::StrCat("kernel ", ShortName(program_.kernel->name), ", block ",
                        Text(block_index_), ", thread ",
                        Text(IndexOf(thread, block_)), ", ",
                        PlaceOf(program_, at), ": ", what);
  }
  void Fail(int at, int thread, const std::string& what) {
    error_ = Message(at, thread, what);
  }

  Program& program_;
  const Dim3 grid_, block_;
  const bool backwards_;
  Clock& clock_;
  Memory memory_;
  std::vector<Warp> warps_;
  Dim3 block_index_;
  // The second: a read of what nobody has written so far, until the next
  // barrier.
  std::string error_, unwritten_;
};

// A kernel's name without what nvcc makes of the build's folder, eight digits:
// its host code may be of another clone's build, from their common cache.
std::string KeyOf(std::string kernel) {
  constexpr absl::string_view kUnnamed = "_GLOBAL__N__";
  constexpr size_t kDigits = 8;
  const size_t at = kernel.find(kUnnamed.data(), 0, kUnnamed.size());
  if (at == std::string::npos ||
      kernel.size() < at + kUnnamed.size() + kDigits) {
    return kernel;
  }
  return kernel.replace(at + kUnnamed.size(), kDigits, kDigits, '0');
}

}  // namespace

absl::Status Interpreter::Load(const std::string& path,
                               absl::string_view text) {
  CAPSTAN_ASSIGN_OR_RETURN(Module module, Parse(path, text));
  modules_.push_back(std::make_unique<Module>(std::move(module)));
  for (const Kernel& kernel : modules_.back()->kernels) {
    CAPSTAN_ASSIGN_OR_RETURN(Program program, Decode(*modules_.back(), kernel));
    if (!programs_.emplace(KeyOf(kernel.name), std::move(program)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the kernel ", kernel.name, " is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status Interpreter::Launch(const std::string& kernel, Dim3 grid,
                                 Dim3 block, int64_t dynamic_shared_bytes,
                                 const void* const* arguments) {
  const auto it = programs_.find(KeyOf(kernel));
  if (it == programs_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no module that is loaded has the kernel ", kernel));
  }
  Program& program = it->second;
  const int most = program.kernel->max_threads == 0
                       ? kMostThreads
                       : program.kernel->max_threads;
  const int64_t shared = program.shared_bytes + dynamic_shared_bytes;
  if (block.Count() < 1 || block.Count() > most || shared > kMostShared) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kernel ", ShortName(kernel), ": a block of ", block.Count(),
        " threads with ", shared, " bytes of shared memory; at most ", most,
        " and ", kMostShared, " are possible"));
  }
  std::vector<uint8_t> parameters(program.parameter_bytes);
  for (size_t i = 0; i < program.parameters.size(); ++i) {
    std::memcpy(parameters.data() + program.parameters[i], arguments[i],
                program.kernel->parameters[i].bytes);
  }
  return Run(program, grid, block, dynamic_shared_bytes, parameters.data(),
             backwards_, clock_)
      .All();
}

}  // namespace capstan::ptx
