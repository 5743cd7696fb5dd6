// SPDX-License-Identifier: Apache-2.0
//
// What memory is held for, so that `plan` can say it before a run and the
// summary after it.
#ifndef CAPSTAN_PLUGINS_SDK_MEMORY_H_
#define CAPSTAN_PLUGINS_SDK_MEMORY_H_

#include <cstddef>

namespace capstan {

enum class MemoryCategory : int {
  kOther = 0,       // batches, checkpoints being read, evaluation
  kParameters,      // working copies that stay, whole or a shard
  kGradients,       // sums that stay until the update
  kMasters,         // masters that aren't the working copies
  kOptimizerState,  // what the optimizer keeps a master
  kBuckets,         // gathered units, gradients on their way to other ranks
  kActivations,     // made in forward: kept for backward, and passing
  kLogits,          // of the output head, and their gradient
  kWorkspace,       // made in backward
};
constexpr int kMemoryCategories = 9;

// "parameters", "optimizer_state", ..
const char* MemoryCategoryName(MemoryCategory category);

// While it lives, host memory of tensors that this thread allocates counts in
// `category`. Innermost wins. Memory keeps its category until it is freed,
// whichever thread frees it.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  const MemoryCategory before_;
};

// The calling thread's category.
MemoryCategory CurrentMemoryCategory();

// Makes `bytes` bytes at `data` zero, as memset would, but leaves it to the
// kernel where it can: whole huge pages in it are given back, and come back
// cleared when they are first touched. So a buffer of the model's size that has
// just been allocated costs nothing here, and is written once where memset
// would be the second time, after the kernel's own.
//
// `data` is a process's own memory: of a heap, of an anonymous private mapping,
// or of a tensor on the CPU that is neither pinned nor shared.
void ZeroFill(void* data, size_t bytes);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MEMORY_H_
