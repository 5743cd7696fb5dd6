// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/micro_batch.h"

#include <algorithm>

#include "base/machine.h"

namespace capstan {
namespace {

// Of what is free; the rest is for fragments, code and buffers of libraries.
constexpr double kPlannedPart = 0.8;
// Host memory that a rank takes beside its tensors.
constexpr int64_t kProcessBytes = int64_t{300} << 20;

}  // namespace

MemoryRequest MemoryRequestOf(const TrainJob& job, int world_size) {
  MemoryRequest request;
  request.strategy.model = job.parts.model.get();
  request.strategy.precision = job.parts.policy();
  request.strategy.world_size = world_size;
  request.strategy.accumulation = job.batch.accumulation;
  request.optimizer = job.parts.optimizer.get();
  request.samples = job.batch.micro_batch_size;
  request.length = job.parts.train_data->max_sequence_length();
  request.checkpointing =
      CheckpointingOf(job.loaded.config.train(), *job.parts.model);
  request.on_gpu = job.gpus > 0;
  request.resident = ReadProcessMemory().anonymous;
  return request;
}

std::vector<int64_t> MicroBatchSizes(int64_t global_batch_size,
                                     int world_size) {
  const int64_t whole = global_batch_size / world_size;
  std::vector<int64_t> sizes;
  for (int64_t size = whole; size > 0; --size) {
    if (whole % size == 0) sizes.push_back(size);
  }
  return sizes;
}

int64_t PlanMicroBatch(const Strategy& strategy, MemoryRequest request,
                       const std::vector<int64_t>& sizes, int64_t budget) {
  for (const int64_t size : sizes) {
    request.samples = size;
    request.strategy.accumulation = sizes.front() / size;
    const MemoryPlan plan = PlanMemory(strategy, request);
    if (plan.activations_known && Total(plan.at_peak) <= budget) return size;
  }
  return 1;
}

int64_t MemoryBudget(bool on_gpu, int ranks_here) {
  if (on_gpu) {
    return static_cast<int64_t>(kPlannedPart *
                                static_cast<double>(FreeGpuMemory()));
  }
  return static_cast<int64_t>(kPlannedPart *
                              static_cast<double>(AvailableHostMemory()) /
                              ranks_here) -
         kProcessBytes;
}

}  // namespace capstan
