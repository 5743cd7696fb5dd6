// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_OUT_OF_MEMORY_H_
#define CAPSTAN_TRAINER_SESSION_OUT_OF_MEMORY_H_

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

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_OUT_OF_MEMORY_H_
