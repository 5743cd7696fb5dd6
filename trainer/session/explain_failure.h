// SPDX-License-Identifier: Apache-2.0
//
// Explains to the user errors of memory and of GPUs: where, and what to do.
#ifndef CAPSTAN_TRAINER_SESSION_EXPLAIN_FAILURE_H_
#define CAPSTAN_TRAINER_SESSION_EXPLAIN_FAILURE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "trainer/session/session.h"

namespace capstan {

// Adds to a RESOURCE_EXHAUSTED error which rank ran out of memory where, what
// `plan` expects, and what to lower, and writes the snapshot of
// train.memory_snapshot_at_oom; returns other statuses unchanged. Called before
// session.phase changes. `micro_batch` counts from 0; -1 after the
// micro-batches.
absl::Status ExplainMemory(const absl::Status& status, const Session& session,
                           int64_t micro_batch);

// Like the above for an error before the first step, when no micro-batch takes
// memory.
absl::Status ExplainMemoryOfSetUp(const absl::Status& status,
                                  const Session& session);

// Whether this process's current GPU, if it uses one, rejects all work after a
// failure. Doesn't wait for the GPU.
bool GpuIsLost();

// If `status` is an error and the GPU is lost, returns an error that says so,
// with rank, step and what to do, as this rank's own error even if a collective
// found it. Otherwise returns `status`. `set_up` says whether steps had begun.
absl::Status ExplainLostGpu(const absl::Status& status, const Session& session,
                            bool set_up);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EXPLAIN_FAILURE_H_
