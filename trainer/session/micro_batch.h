// SPDX-License-Identifier: Apache-2.0
//
// micro_batch_size: AUTO.
#ifndef CAPSTAN_TRAINER_SESSION_MICRO_BATCH_H_
#define CAPSTAN_TRAINER_SESSION_MICRO_BATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/session/run_parts.h"

namespace capstan {

struct Session;
class TrainStep;

// What the job's memory depends on beside its strategy.
MemoryRequest MemoryRequestOf(const TrainJob& job, int world_size);

// The sizes that cut the global batch evenly over the ranks, the largest first;
// it ends with 1.
std::vector<int64_t> MicroBatchSizes(int64_t global_batch_size, int world_size);

// The largest of them whose plan takes at most `budget` bytes on the device; 1
// where the model can't tell what it takes.
int64_t PlanMicroBatch(const Strategy& strategy, MemoryRequest request,
                       const std::vector<int64_t>& sizes, int64_t budget);

// What a rank of `ranks_here` on this machine may take by a plan, in bytes: a
// part of what is free on the device, since plans don't know everything.
int64_t MemoryBudget(bool on_gpu, int ranks_here);

// Settles the job's micro-batch: what was planned, if a step of it fits into
// memory on all ranks; else about half of it, and so on. Returns a line for the
// user. Collective, once the step is set up.
absl::StatusOr<std::string> SettleMicroBatch(Session* session, TrainStep* step);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MICRO_BATCH_H_
