// SPDX-License-Identifier: Apache-2.0
//
// Categories of memory, for the estimate of `plan` and the summary after a run.
#ifndef CAPSTAN_PLUGINS_SDK_MEMORY_H_
#define CAPSTAN_PLUGINS_SDK_MEMORY_H_

#include <cstddef>

namespace capstan {

enum class MemoryCategory : int {
  kOther = 0,       // batches, checkpoints being read, evaluation
  kParameters,      // working copies that stay, whole or a shard
  kGradients,       // sums that stay until the update
  kMasters,         // masters that aren't the working copies
  kOptimizerState,  // the optimizer's, per master
  kBuckets,         // gathered units, gradients on their way to other ranks
  kActivations,     // made in forward: kept for backward, and passing
  kLogits,          // of the output head, and their gradient
  kWorkspace,       // made in backward
};
constexpr int kMemoryCategories = 9;

const char* MemoryCategoryName(MemoryCategory category);  // "parameters", ..

// Attributes host memory of tensors that this thread allocates meanwhile to
// `category`, until any thread frees it. The innermost scope wins.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  const MemoryCategory before_;
};

MemoryCategory CurrentMemoryCategory();  // this thread's

// Like memset to 0, but returns whole huge pages to the kernel, so that they
// are cleared once, when touched. `data` must be private memory: heap, an
// anonymous private mapping, or a CPU tensor neither pinned nor shared.
void ZeroFill(void* data, size_t bytes);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MEMORY_H_
