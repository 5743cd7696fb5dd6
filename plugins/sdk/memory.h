// SPDX-License-Identifier: Apache-2.0
//
// What memory is held for, so that `plan` can say it before a run and the
// summary after it.
#ifndef CAPSTAN_PLUGINS_SDK_MEMORY_H_
#define CAPSTAN_PLUGINS_SDK_MEMORY_H_

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

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MEMORY_H_
