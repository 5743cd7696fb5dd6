// SPDX-License-Identifier: Apache-2.0
//
// Device memory that knows who has touched each byte: global memory, which is
// the host's, by allocations, and a block's shared memory.
#ifndef CAPSTAN_TESTING_PTX_MEMORY_H_
#define CAPSTAN_TESTING_PTX_MEMORY_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "testing/ptx/program.h"

namespace capstan::ptx {

// Time passes at each barrier and shuffle, and when a block or a launch begins.
struct Clock {
  uint32_t now = 0;
  uint32_t barrier = 0, block = 0, launch = 0;  // when the last ones were
};

// Who accesses, by its number in the block, and when.
struct Moment {
  Clock clock;
  int thread;
  uint32_t shuffle;  // when the thread's warp last exchanged values, all lanes
};

// The last accesses to each byte of a piece of memory.
class Shadow {
 public:
  explicit Shadow(int64_t bytes) : touches_(bytes) {}

  // Notes an access to [at, at + bytes). Returns "", or which other access it
  // races with: one of them writes, and no barrier lies between. A shuffle
  // orders reads of its warp before later writes, as it waits for what lanes
  // make of what they have read; nothing else.
  std::string Touch(int64_t at, int bytes, bool writes, const Moment& moment);

  // Whether [at, at + bytes) has been written since then.
  bool IsWritten(int64_t at, int bytes, uint32_t since) const;

 private:
  struct Byte {
    uint32_t written_at = 0, read_at = 0;  // 0: never
    uint16_t writer = 0, reader = 0;       // memory.cc has more than threads
  };

  static std::string WriteRace(const Byte& byte, const Moment& moment);

  std::vector<Byte> touches_;
};

// Where kernels may go in global memory. Any thread.
class Allocations {
 public:
  static Allocations& Global();

  void Add(const void* begin, int64_t bytes);
  void Remove(const void* begin);

  struct Allocation {
    uint64_t begin = 0;
    int64_t bytes = 0;
    std::vector<Shadow> shadow;  // one, made when a kernel first comes
    bool Holds(uint64_t address, int64_t size) const {
      return address >= begin && address + size <= begin + bytes;
    }
  };
  // The allocation that holds [address, address + bytes), else null; then
  // *error says where it lies. It stays until Remove.
  Allocation* Find(uint64_t address, int bytes, std::string* error);

 private:
  std::mutex mutex_;
  std::map<uint64_t, Allocation> by_begin_;
};

// What the threads of a block see.
class Memory {
 public:
  // `dynamic_bytes`: of shared memory, by the launch.
  Memory(const Program& program, int64_t dynamic_bytes,
         const uint8_t* parameters);

  // Before each block: fills shared memory with NaN.
  void Clear();

  // Checks the access of a lane to [address, address + instruction.Bytes()) and
  // returns where the bytes are on the host; null after an error, which
  // *error names. A read of what hasn't been written isn't null: if a thread
  // writes it before the next barrier, the error is the race.
  uint8_t* Access(const Instruction& instruction, uint64_t address,
                  const Moment& moment, std::string* error);

  // Whether the instruction's address is of shared memory.
  static bool IsShared(const Instruction& instruction, uint64_t address);

 private:
  struct Range {
    std::string name;
    int64_t begin, bytes;
  };

  uint8_t* Global(const Instruction& instruction, uint64_t address,
                  const Moment& moment, std::string* error);
  uint8_t* Shared(const Instruction& instruction, int64_t address,
                  Moment moment, std::string* error);

  const Program& program_;
  const uint8_t* parameters_;
  std::vector<Range> ranges_;
  std::vector<uint8_t> shared_;
  Shadow shared_shadow_;
  Allocations::Allocation* last_ = nullptr;  // where the last access was
};

// Adds the cost of an access by `lanes` at `addresses` to `counts`.
void CountAccess(const Instruction& instruction, const Lanes& addresses,
                 uint32_t lanes, Counts& counts);

}  // namespace capstan::ptx

#endif  // CAPSTAN_TESTING_PTX_MEMORY_H_
