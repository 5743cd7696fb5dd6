// SPDX-License-Identifier: Apache-2.0
//
// Predicts a run's memory before it starts, from what the strategy declares it
// holds and what the model declares its units allocate over a step.
#ifndef CAPSTAN_TRAINER_MEMORY_MEMORY_PLAN_H_
#define CAPSTAN_TRAINER_MEMORY_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/strategy.h"
#include "trainer/memory/tracking_allocator.h"

namespace capstan {

// Which units recompute their activations in backward (Chen et al., "Training
// Deep Nets with Sublinear Memory Cost", 2016).
struct ActivationCheckpointing {
  // Every n-th unit (number divisible by n); 0: none.
  int64_t every = 0;
  // Units of the model; the last is never recomputed, as its backward starts at
  // once.
  int units = 0;
  // The first unit with a trainable parameter; those before it have no
  // backward.
  int first_trainable = 0;
  // Whether their inputs are in host memory until backward. Only on a GPU.
  bool offload = false;

  // Whether `unit` is recomputed, provided its input is floating-point (token
  // ids are an embedding's input, which keeps nothing).
  bool Covers(int unit) const {
    return every > 0 && unit % every == 0 && unit >= first_trainable &&
           unit + 1 < units;
  }
};

// What a run's memory depends on.
struct MemoryRequest {
  StrategyRequest strategy;
  const Optimizer* optimizer = nullptr;
  int64_t samples = 1;  // per micro-batch
  int64_t length = 0;   // tokens per sample; 0: unknown
  // The same of evaluation's forwards: as many samples if 0, and no evaluation,
  // or one of which nothing is known, without a length.
  int64_t evaluation_samples = 0;
  int64_t evaluation_length = 0;
  // Whether samples differ in length (DatasetReader::sample_length).
  bool lengths_differ = false;
  bool local_steps = false;  // Strategy::local_steps
  ActivationCheckpointing checkpointing;
  bool on_gpu = false;
  // What a rank's process holds before its first tensor; 0: unknown.
  int64_t resident = 0;
  // train.offload.optimizer_state.
  bool paged_state = false;
  // Whether checkpoints are written in the background, and how many images of
  // the state a rank's mirror has.
  bool snapshot = false;
  int mirror_images = 0;
  // train.cuda_graphs, on a GPU.
  bool cuda_graphs = false;
};

// Prediction for the rank that holds most; in bytes.
struct MemoryPlan {
  // On the device at its peak, in a step or an evaluation; CPU runs have
  // everything there.
  MemoryByCategory at_peak{};
  // All of it at the peak of an evaluation during training; 0: there is none,
  // or it is unknown. An upper bound: a forward without gradients is taken to
  // hold of each unit, one at a time, what one with gradients keeps.
  int64_t evaluation = 0;
  // Host memory next to a GPU (offload), from set-up to the end.
  int64_t host = 0;
  // On CPUs: paged optimizer state, in a file.
  int64_t file = 0;
  // Host memory for copies of what the rank saves: of the one that is written
  // in the background, from the first save on, and of the mirror's.
  int64_t snapshot = 0;
  int64_t mirror = 0;
  // Whether the model declares what its units allocate. If not, activations,
  // logits and workspace are left out.
  bool activations_known = false;
  // Sent by one rank per step, over all its micro-steps.
  int64_t sent = 0;
  // Approximate peak host memory of the rank's process, tensors included. Unset
  // if the tensors or `resident` are unknown, and on GPUs, where the driver's
  // share is unknown. `snapshot` and `mirror` are part of it.
  absl::optional<int64_t> process;

  // Whether at_peak covers `category`.
  bool Knows(MemoryCategory category) const;
};

MemoryPlan PlanMemory(const Strategy& strategy, const MemoryRequest& request);

// Expected peak of a process that held `resident` bytes before its first tensor
// and `tensors` bytes at most in tensors, computing in `compute` on a CPU.
// `other_sizes`: bytes of blocks that the run needs in other sizes at other
// times, which the block cache keeps as far as it may (BlockCache::Slack). Adds
// library code and tables, and other non-tensor memory, an empirical estimate.
int64_t ExpectedProcess(int64_t resident, int64_t tensors, int64_t other_sizes,
                        c10::ScalarType compute);

// PlanMemory from what a strategy and a model declare. `paged_state`: the
// optimizer's state isn't on the device but for a piece. `update`: what the
// optimizer's update allocates (Optimizer::UpdateBytes). `evaluation`: the
// units of an evaluation's forward; empty: there is none.
MemoryPlan PlanMemory(const StrategyPlan& strategy, int64_t optimizer_state,
                      const std::vector<UnitMemory>& units,
                      const ActivationCheckpointing& checkpointing, bool on_gpu,
                      bool paged_state = false, int64_t update = 0,
                      const std::vector<UnitMemory>& evaluation = {});

// What a rank of `request` saves: its part of masters and optimizer state, 12
// bytes a trainable parameter for all ranks together with AdamW in float32.
// `held` is StrategyPlan::optimizer_elements.
int64_t SavedBytes(const MemoryRequest& request, int64_t held);

// NCCL's settings that its memory depends on; 0: its own.
struct NcclSizes {
  int64_t buffer = 0;  // bytes of a channel's buffer
  int max_ctas = 0;    // the most channels
};

// What a GPU of `bytes` has for a run's tensors: without what else takes its
// memory, in bytes. Estimates, never compared with a card.
struct GpuRoom {
  int64_t bytes = 0;
  int64_t context = 0;        // CUDA's context and the kernels that are loaded
  int64_t workspaces = 0;     // of cuBLAS
  int64_t nccl = 0;           // buffers between GPUs
  int64_t fragmentation = 0;  // of LibTorch's allocator, with its rounding
  int64_t for_tensors() const {
    return bytes - context - workspaces - nccl - fragmentation;
  }
};
GpuRoom RoomOfGpu(int64_t bytes, int ranks, const NcclSizes& nccl = {});

// "24GiB", "80 GB", "512MiB", "4096B". A number without a unit is an error, as
// --gpu_memory=80 doesn't mean bytes.
absl::StatusOr<int64_t> BytesFromText(absl::string_view text);

// What one of `ranks` GPUs, and one machine with all of them, holds. Plain
// text.
std::string DeviceTable(const MemoryPlan& plan, const GpuRoom& room, int ranks);

// An error if the offload of `ranks` ranks on this machine needs more host
// memory than the `available` bytes.
absl::Status CheckHostMemory(const Strategy& strategy,
                             const MemoryRequest& request, int ranks,
                             int64_t available);
absl::Status CheckHostMemory(const StrategyPlan& strategy,
                             int64_t optimizer_state, int ranks,
                             int64_t available);

// A column of the table.
struct PlannedStrategy {
  std::string name;      // "capstan.ddp"
  std::string settings;  // where they come from: "this run"
  MemoryPlan plan;
};

// A strategy that can't run this, and why.
struct RefusedStrategy {
  std::string name;
  std::string reason;
};

// What the `ranks` ranks of one machine, and the process of `launcher` bytes
// that starts them, take of its memory. `mapped`: bytes of the files that they
// read by mapping. Plain text.
std::string HostTable(const MemoryPlan& plan, int ranks, int64_t launcher,
                      int64_t mapped);

// Memory by category and bytes sent, one column per strategy, followed by the
// refused ones. Plain text.
std::string PlanTable(const std::vector<PlannedStrategy>& strategies,
                      const std::vector<RefusedStrategy>& refused);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_MEMORY_PLAN_H_
