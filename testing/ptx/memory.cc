// SPDX-License-Identifier: Apache-2.0
#include "testing/ptx/memory.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "testing/ptx/report.h"

namespace capstan::ptx {
namespace {

// Readers beyond a thread's number: several lanes of warp w (kLanes + w),
// several warps of the block, and other blocks.
constexpr uint16_t kLanes = 1024, kWarps = 0xfffe, kOtherBlocks = 0xffff;

uint16_t WarpOf(uint16_t who) {
  return who < kLanes ? who / kWarp : who - kLanes;
}

// Whether what `who` did at `then` isn't ordered before `moment`.
bool Races(uint32_t then, uint16_t who, const Moment& moment) {
  const Clock& clock = moment.clock;
  if (then < clock.launch) return false;
  return then < clock.block || (then >= clock.barrier && who != moment.thread);
}

std::string Other(const char* did, uint16_t who, uint32_t then,
                  const Moment& moment) {
  std::string other;
  if (then < moment.clock.block || who == kOtherBlocks) {
    other = "another block";
  } else if (who < kLanes) {
    other = absl::StrCat("thread ", who);
  } else {
    other = "other threads of the block";
  }
  return absl::StrCat("races with ", other, ", which ", did,
                      " it; no barrier lies between");
}

// Of a byte, its readers with `self` among them.
uint16_t Joined(uint32_t read_at, uint16_t reader, uint16_t self,
                const Clock& clock) {
  if (read_at < clock.launch) return self;
  if (read_at < clock.block || reader == kOtherBlocks) return kOtherBlocks;
  if (read_at < clock.barrier || reader == self) return self;
  if (reader != kWarps && WarpOf(reader) == WarpOf(self)) {
    return kLanes + WarpOf(self);
  }
  return kWarps;
}

}  // namespace

std::string Shadow::WriteRace(const Byte& byte, const Moment& moment) {
  const bool by_other_blocks =
      byte.read_at >= moment.clock.launch && byte.reader == kOtherBlocks;
  const bool before_shuffle = byte.read_at >= moment.clock.block &&
                              byte.read_at < moment.shuffle &&
                              WarpOf(byte.reader) == moment.thread / kWarp;
  if (by_other_blocks ||
      (Races(byte.read_at, byte.reader, moment) && !before_shuffle)) {
    return Other("has read", byte.reader, byte.read_at, moment);
  }
  return "";
}

std::string Shadow::Touch(int64_t at, int bytes, bool writes,
                          const Moment& moment) {
  const auto self = static_cast<uint16_t>(moment.thread);
  for (Byte* byte = &touches_[at]; byte != &touches_[at] + bytes; ++byte) {
    if (Races(byte->written_at, byte->writer, moment)) {
      return Other("has written", byte->writer, byte->written_at, moment);
    }
    if (!writes) {
      byte->reader = Joined(byte->read_at, byte->reader, self, moment.clock);
      byte->read_at = moment.clock.now;
      continue;
    }
    std::string race = WriteRace(*byte, moment);
    if (!race.empty()) return race;
    byte->written_at = moment.clock.now;
    byte->writer = self;
  }
  return "";
}

bool Shadow::IsWritten(int64_t at, int bytes, uint32_t since) const {
  return std::all_of(
      touches_.begin() + at, touches_.begin() + at + bytes,
      [since](const Byte& byte) { return byte.written_at >= since; });
}

Allocations& Allocations::Global() {
  static Allocations* const allocations = new Allocations;
  return *allocations;
}

void Allocations::Add(const void* begin, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Allocation& added = by_begin_[reinterpret_cast<uint64_t>(begin)];
  added.begin = reinterpret_cast<uint64_t>(begin);
  added.bytes = bytes;
}

void Allocations::Remove(const void* begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  by_begin_.erase(reinterpret_cast<uint64_t>(begin));
}

Allocations::Allocation* Allocations::Find(uint64_t address, int bytes,
                                           std::string* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto next = by_begin_.upper_bound(address);
  Allocation* before =
      next == by_begin_.begin() ? nullptr : &std::prev(next)->second;
  if (before != nullptr && before->Holds(address, bytes)) {
    if (before->shadow.empty()) before->shadow.emplace_back(before->bytes);
    return before;
  }
  // How far it is from the end of the one and the beginning of the other.
  constexpr uint64_t kFar = ~uint64_t{0};
  uint64_t behind = kFar, ahead = kFar;
  if (before != nullptr) {
    const uint64_t end = before->begin + before->bytes;
    behind = address > end ? address - end : 0;
  }
  if (next != by_begin_.end()) ahead = next->first - address;
  if (address < 4096) {
    *error = "is at a null pointer";
  } else if (before != nullptr && behind <= ahead) {
    *error = absl::StrCat("is at byte ", address - before->begin,
                          " of an allocation of ", before->bytes,
                          " bytes, the nearest");
  } else if (ahead != kFar) {
    *error = absl::StrCat("begins ", ahead, " bytes before an allocation of ",
                          next->second.bytes, " bytes, the nearest");
  } else {
    *error = "is in no allocation";
  }
  return nullptr;
}

Memory::Memory(const Program& program, int64_t dynamic_bytes,
               const uint8_t* parameters)
    : program_(program),
      parameters_(parameters),
      shared_(program.dynamic_begin + dynamic_bytes),
      shared_shadow_(program.dynamic_begin + dynamic_bytes) {
  for (const auto& [variable, begin] : program.shared) {
    ranges_.push_back({VariableName(variable->name), begin,
                       variable->dynamic ? dynamic_bytes : variable->bytes});
  }
}

void Memory::Clear() { std::fill(shared_.begin(), shared_.end(), 0xff); }

bool Memory::IsShared(const Instruction& instruction, uint64_t address) {
  return instruction.space == Space::kShared ||
         (instruction.space == Space::kGeneric && address >= kSharedWindow);
}

uint8_t* Memory::Access(const Instruction& instruction, uint64_t address,
                        const Moment& moment, std::string* error) {
  const int bytes = instruction.Bytes();
  if (address % bytes != 0) {
    *error = "isn't aligned";
    return nullptr;
  }
  if (instruction.space == Space::kParameter) {
    if (address + bytes > static_cast<uint64_t>(program_.parameter_bytes) ||
        instruction.kind == Kind::kStore) {
      *error = absl::StrCat("is outside the ", program_.parameter_bytes,
                            " bytes of parameters");
      return nullptr;
    }
    // A launch's parameters aren't written.
    return const_cast<uint8_t*>(parameters_) + address;
  }
  if (!IsShared(instruction, address)) {
    return Global(instruction, address, moment, error);
  }
  if (instruction.space == Space::kGeneric) address -= kSharedWindow;
  return Shared(instruction, static_cast<int64_t>(address), moment, error);
}

uint8_t* Memory::Global(const Instruction& instruction, uint64_t address,
                        const Moment& moment, std::string* error) {
  const int bytes = instruction.Bytes();
  if (last_ == nullptr || !last_->Holds(address, bytes)) {
    Allocations::Allocation* found =
        Allocations::Global().Find(address, bytes, error);
    if (found == nullptr) return nullptr;
    last_ = found;
  }
  *error =
      last_->shadow[0].Touch(static_cast<int64_t>(address - last_->begin),
                             bytes, instruction.kind == Kind::kStore, moment);
  return error->empty() ? reinterpret_cast<uint8_t*>(address) : nullptr;
}

uint8_t* Memory::Shared(const Instruction& instruction, int64_t address,
                        Moment moment, std::string* error) {
  // Other blocks have shared memory of their own.
  moment.clock.launch = moment.clock.block;
  const int bytes = instruction.Bytes();
  const auto range =
      std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& r) {
        return address >= r.begin && address + bytes <= r.begin + r.bytes;
      });
  if (range == ranges_.end()) {
    *error = "is in no shared variable";
    for (const Range& r : ranges_) {
      if (address < r.begin) continue;
      *error = absl::StrCat("is at byte ", address - r.begin,
                            " of the shared variable ", r.name, " of ", r.bytes,
                            " bytes, the nearest");
    }
    return nullptr;
  }
  const bool writes = instruction.kind == Kind::kStore;
  *error = shared_shadow_.Touch(address, bytes, writes, moment);
  const bool races = !error->empty();
  if (!races && !writes &&
      !shared_shadow_.IsWritten(address, bytes, moment.clock.block)) {
    *error = "hasn't been written by any thread of the block";
  }
  if (!error->empty()) {
    absl::StrAppend(error, " (byte ", address - range->begin,
                    " of the shared variable ", range->name, ")");
  }
  return races ? nullptr : &shared_[address];
}

namespace {

// Distinct numbers of `values`, ascending, and how many.
int Distinct(uint64_t* values, int count) {
  std::sort(values, values + count);
  return static_cast<int>(std::unique(values, values + count) - values);
}

void CountGlobal(const Instruction& instruction, uint64_t* addresses, int lanes,
                 Counts& counts) {
  constexpr int kSector = 32;
  lanes = Distinct(addresses, lanes);
  counts.least_sectors += (lanes * instruction.Bytes() + kSector - 1) / kSector;
  // Aligned accesses lie in one sector each.
  for (int i = 0; i < lanes; ++i) addresses[i] /= kSector;
  counts.sectors += Distinct(addresses, lanes);
}

// Lanes that access 128 bytes together take part in a pass at once; a pass
// reads one word of each bank, for as many lanes as want it.
void CountShared(const Instruction& instruction, const Lanes& addresses,
                 uint32_t lanes, Counts& counts) {
  constexpr int kBanks = 32, kWord = 4;
  const int words = std::max(1, instruction.Bytes() / kWord);
  const int together = kWarp / words;
  for (int first = 0; first < kWarp; first += together) {
    std::array<uint64_t, kWarp> wanted;
    int count = 0;
    for (int lane = first; lane < first + together; ++lane) {
      if (((lanes >> lane) & 1) == 0) continue;
      for (int word = 0; word < words; ++word) {
        wanted[count++] = addresses[lane] / kWord + word;
      }
    }
    if (count == 0) continue;
    count = Distinct(wanted.data(), count);
    std::array<int, kBanks> of_bank = {};
    int most = 0;
    for (int i = 0; i < count; ++i) {
      most = std::max(most, ++of_bank[wanted[i] % kBanks]);
    }
    counts.passes += most;
    ++counts.least_passes;
  }
}

}  // namespace

void CountAccess(const Instruction& instruction, const Lanes& addresses,
                 uint32_t lanes, Counts& counts) {
  if (instruction.space == Space::kParameter) return;
  std::array<uint64_t, kWarp> global;
  int global_lanes = 0;
  uint32_t shared_lanes = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (((lanes >> lane) & 1) == 0) continue;
    if (Memory::IsShared(instruction, addresses[lane])) {
      shared_lanes |= uint32_t{1} << lane;
    } else {
      global[global_lanes++] = addresses[lane];
    }
  }
  if (shared_lanes != 0) {
    CountShared(instruction, addresses, shared_lanes, counts);
  }
  if (global_lanes > 0) {
    CountGlobal(instruction, global.data(), global_lanes, counts);
  }
}

}  // namespace capstan::ptx
