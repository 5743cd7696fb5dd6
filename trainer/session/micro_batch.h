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

class MicroSteps;
struct Session;

// The most tokens of a row that is trained on: what is read, and answers to it;
// 0: the data isn't text.
int64_t LongestRow(const TrainJob& job);

// Returns what the job's memory depends on besides its strategy.
MemoryRequest MemoryRequestOf(const TrainJob& job, int world_size);

// Returns the sizes that divide the global batch into micro-batches, `at_once`
// of which are computed at a time, and with which no rank computes more samples
// of a step than with 1, in descending order, ending with 1.
std::vector<int64_t> MicroBatchSizes(int64_t global_batch_size, int at_once);

// Returns the largest of `sizes` that is planned to take at most `budget`
// device bytes; 1 if the model has no plan.
int64_t PlanMicroBatch(const Strategy& strategy, MemoryRequest request,
                       const std::vector<int64_t>& sizes, int64_t budget);

// Returns the device bytes that each of `ranks_here` ranks on this machine may
// plan for: a fraction of the free ones, since plans aren't exact.
int64_t MemoryBudget(bool on_gpu, int ranks_here);

// Chooses the job's micro-batch: the planned size if a trial step fits into
// memory on all ranks, otherwise about half of it, and so on. Returns a line
// for the user. Collective; called once the ranks are set up.
absl::StatusOr<std::string> SettleMicroBatch(Session* session,
                                             MicroSteps* micro_steps);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MICRO_BATCH_H_
