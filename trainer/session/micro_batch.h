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

// What the job's memory depends on besides its strategy.
MemoryRequest MemoryRequestOf(const TrainJob& job, int world_size);

// The sizes that divide the global batch evenly over the ranks, in descending
// order, ending with 1.
std::vector<int64_t> MicroBatchSizes(int64_t global_batch_size, int world_size);

// The largest of them planned to take at most `budget` device bytes; 1 if the
// model can't tell.
int64_t PlanMicroBatch(const Strategy& strategy, MemoryRequest request,
                       const std::vector<int64_t>& sizes, int64_t budget);

// Device bytes that each of `ranks_here` ranks on this machine may plan for: a
// fraction of what is free, since plans aren't exact.
int64_t MemoryBudget(bool on_gpu, int ranks_here);

// Settles the job's micro-batch: the planned size if a trial step fits into
// memory on all ranks, else about half of it, and so on. Returns a line for the
// user. Collective; call once the step is set up.
absl::StatusOr<std::string> SettleMicroBatch(Session* session, TrainStep* step);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MICRO_BATCH_H_
