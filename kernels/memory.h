// SPDX-License-Identifier: Apache-2.0
//
// The memory of kernels: dividing a piece of it, and predicting what an
// operator holds. `plan` adds up the predictions; memory_test.cc in each folder
// compares them with a counting allocator.
#ifndef CAPSTAN_KERNELS_MEMORY_H_
#define CAPSTAN_KERNELS_MEMORY_H_

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

namespace capstan::kernels {

constexpr int64_t kFloatBytes = 4;

inline int64_t ElementBytes(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

// Parts of one piece of memory, each aligned to a cache line. With a null base
// it only counts.
class MemoryParts {
 public:
  explicit MemoryParts(float* base) : base_(base) {}
  // `count` numbers of T, whose size divides a cache line's.
  template <typename T = float>
  T* Take(int64_t count) {
    float* const part = base_ == nullptr ? nullptr : base_ + used_;
    constexpr int64_t kLine = 64 / sizeof(T);
    used_ += (count + kLine - 1) / kLine * 16;
    return reinterpret_cast<T*>(part);
  }
  int64_t used() const { return used_; }  // floats

 private:
  float* const base_;
  int64_t used_ = 0;
};

// Tracks the bytes that are live while an operator runs.
class MemoryLedger {
 public:
  explicit MemoryLedger(int64_t live = 0) : live_(live), peak_(live) {}
  void Take(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void Free(int64_t bytes) { live_ -= bytes; }
  // Allocated and freed again.
  void Pass(int64_t bytes) { peak_ = std::max(peak_, live_ + bytes); }
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t live_;
  int64_t peak_;
};

// What an operator allocates, in bytes.
struct OperatorMemory {
  // From forward to backward: with the output, without the input.
  int64_t kept = 0;
  // Peak beyond `kept` during forward.
  int64_t forward = 0;
  // Peak beyond `kept` during backward, including the gradients that it
  // returns; the output's gradient takes the place of the output.
  int64_t backward = 0;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_MEMORY_H_
