// SPDX-License-Identifier: Apache-2.0
//
// Blocks of LibTorch's caching allocator, which rarely calls cudaFree: to the
// device they are works of the stream that they belong to.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_BLOCKS_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_BLOCKS_H_

#include <cstdint>

namespace capstan::standin {

struct Block {
  const void* begin = nullptr;
  int64_t bytes = 0;  // as asked for
  int device = 0;     // among the visible ones
  void* stream = nullptr;
  // Of the memory of a CUDA graph, which the graph goes on using.
  bool of_graph = false;
};

// The block was given out. Any thread, also with the allocator's lock held.
void BlockAllocated(const Block& block);

// It was given back, and may be given out again for the same stream: all that
// comes after in the stream finds it poisoned.
void BlockFreed(const Block& block);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_BLOCKS_H_
