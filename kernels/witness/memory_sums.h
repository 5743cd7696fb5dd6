// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_WITNESS_MEMORY_SUMS_H_
#define CAPSTAN_KERNELS_WITNESS_MEMORY_SUMS_H_

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "kernels/context/word_sums.h"

namespace capstan::kernels {

// A word of memory that isn't what it was.
struct ChangedWord {
  int64_t word = 0;  // from the beginning; where `mended` is false, a block's
  uint32_t was = 0;
  uint32_t is = 0;
  bool mended = false;
};

// Loops for AVX-512 take WordSums to be aligned to their vectors, of which
// other code knows nothing.
template <typename T>
struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <typename Other>
  explicit Aligned(const Aligned<Other>&) {}
  T* allocate(size_t n) {
    void* const memory = std::aligned_alloc(64, n * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { std::free(memory); }
  friend bool operator==(const Aligned&, const Aligned&) { return true; }
  friend bool operator!=(const Aligned&, const Aligned&) { return false; }
};

// Sums of a piece of memory, by which it is known again later. On LibTorch's
// intra-op threads.
class MemorySums {
 public:
  // Of `bytes` bytes; of a last word that isn't whole, nothing.
  void Take(const void* memory, int64_t bytes);
  bool empty() const { return blocks_.empty(); }
  void Forget() { blocks_.clear(); }

  // Compares, and mends the words that have changed, one for each lane and
  // block at most; more, or what rotates into itself, stays as it is.
  std::vector<ChangedWord> Verify(void* memory, int64_t bytes) const;
  // The same of block `block` alone, `words` words from `memory` on.
  void VerifyBlock(int64_t block, void* memory, int64_t words,
                   std::vector<ChangedWord>* changes) const;
  void TakeBlock(int64_t block, const void* memory, int64_t words);

 private:
  std::vector<WordSums, Aligned<WordSums>> blocks_;
};

// The parity of 16 words, in all of `bytes` bytes; a last one is padded with
// zeros. out: 64 bytes.
void ParityOfBytes(const void* from, int64_t bytes, void* out);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_WITNESS_MEMORY_SUMS_H_
