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

// "parameters", "optimizer_state", ..
const char* MemoryCategoryName(MemoryCategory category);

// Attributes host memory of tensors that this thread allocates during its
// lifetime to `category`. The innermost scope wins. Memory keeps its category
// until it is freed, by whichever thread.
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

// Like memset to 0, but returns whole huge pages to the kernel, which clears
// them when they are next touched, so that a new buffer of the model's size is
// cleared once instead of twice. `data` must be private memory of the process:
// heap, an anonymous private mapping, or a CPU tensor that is neither pinned
// nor shared.
void ZeroFill(void* data, size_t bytes);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MEMORY_H_
