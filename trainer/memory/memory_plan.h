// SPDX-License-Identifier: Apache-2.0
//
// The memory of a run before it starts: what the strategy says that it holds,
// and what the model says that its units make, on the time line of a step.
#ifndef CAPSTAN_TRAINER_MEMORY_MEMORY_PLAN_H_
#define CAPSTAN_TRAINER_MEMORY_MEMORY_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/strategy.h"
#include "trainer/memory/activation_checkpointing.h"
#include "trainer/memory/tracking_allocator.h"

namespace capstan {

// A run, as far as its memory depends on it.
struct MemoryRequest {
  StrategyRequest strategy;
  const Optimizer* optimizer = nullptr;
  int64_t samples = 1;  // of a micro-batch
  int64_t length = 0;   // tokens of a sample; 0: not known
  ActivationCheckpointing checkpointing;
  bool on_gpu = false;
  // What a rank's process inherits, which is all it holds before it makes its
  // first tensor; 0: not known.
  int64_t resident = 0;
};

// What the rank that holds most will hold; in bytes.
struct MemoryPlan {
  // When it holds most, on the device: CPU runs have all there.
  MemoryByCategory at_peak{};
  // In host memory beside a GPU (offload), from set-up to the end.
  int64_t host = 0;
  // Whether the model could tell what its units make. If not, activations,
  // logits and workspace are left out.
  bool activations_known = false;
  // By one rank in a step, with all its micro-steps.
  int64_t sent = 0;
  // Roughly the most that the rank's process will hold, tensors included, in
  // host memory; none where they, or what it holds before, aren't known, and
  // on a GPU, whose driver's share nobody knows.
  absl::optional<int64_t> process;

  // Whether at_peak tells of that category.
  bool Knows(MemoryCategory category) const;
};

MemoryPlan PlanMemory(const Strategy& strategy, const MemoryRequest& request);

// A process that held `resident` bytes before its first tensor, once its
// tensors have held `tensors` at most, computing in `compute` on a CPU: with
// the blocks that are kept for the next step, the libraries' code and tables,
// and what isn't a tensor. Measured, not derived: runs have held from a tenth
// less to 40 % more (Algorithm Distillation, and MKL's buffers on Intel).
int64_t ExpectedProcess(int64_t resident, int64_t tensors,
                        c10::ScalarType compute);

// The same of what a strategy and a model have said of themselves.
MemoryPlan PlanMemory(const StrategyPlan& strategy, int64_t optimizer_state,
                      const std::vector<UnitMemory>& units,
                      const ActivationCheckpointing& checkpointing,
                      bool on_gpu);

// An error if `ranks` ranks on this machine put more into host memory, by
// offload, than the `available` bytes.
absl::Status CheckHostMemory(const Strategy& strategy,
                             const MemoryRequest& request, int ranks,
                             int64_t available);
absl::Status CheckHostMemory(const StrategyPlan& strategy,
                             int64_t optimizer_state, int ranks,
                             int64_t available);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_MEMORY_PLAN_H_
