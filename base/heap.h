// SPDX-License-Identifier: Apache-2.0
//
// How malloc takes memory from the kernel and gives it back: the only place
// that sets that. Without a library, as the trainer's main has none when it
// begins.
#ifndef CAPSTAN_BASE_HEAP_H_
#define CAPSTAN_BASE_HEAP_H_

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace capstan {

// Sets malloc's thresholds for good, instead of glibc's, which move: a block of
// at least `mmap` bytes is mapped on its own, and unmapped when freed; smaller
// ones come from the heap, whose free end goes back to the kernel when it is
// larger than `trim` (-1: never).
inline void SetHeapThresholds(int mmap, int trim) {
  mallopt(M_MMAP_THRESHOLD, mmap);
  mallopt(M_TRIM_THRESHOLD, trim);
}

// The first call of the program, which until KeepFreedMemory gives large blocks
// back: what it reads and plans is no rank's to keep. Requests huge pages for
// the next `bytes` of the heap: loading LibTorch allocates half a million small
// objects, and with small pages the kernel's share of that, and of forking the
// ranks, is several times as large. Uses no memory until touched.
inline void BackHeapWithHugePages(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  // The maxima of glibc's moving thresholds: the block below comes from the
  // heap and stays there when freed.
  SetHeapThresholds(32 << 20, 64 << 20);
  mallopt(M_TOP_PAD, static_cast<int>(bytes));
  void* const block = std::malloc(kHugePage);
  mallopt(M_TOP_PAD, 128 << 10);  // glibc's own
  if (block == nullptr) return;
  const uintptr_t begin =
      (reinterpret_cast<uintptr_t>(block) + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(sbrk(0));
  // Falls back to small pages.
  if (end > begin) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
  std::free(block);
}

// For a process that trains, in which steps free and allocate the same sizes
// again and again: keeps what the block cache leaves to the heap (below 256
// KiB, and non-tensors) instead of having the kernel map it anew.
inline void KeepFreedMemory() { SetHeapThresholds(1 << 30, -1); }

}  // namespace capstan

#endif  // CAPSTAN_BASE_HEAP_H_
