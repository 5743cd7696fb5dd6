// SPDX-License-Identifier: Apache-2.0
//
// Checks what must be equal on all ranks. Under a launcher each host has files,
// flags and libraries of its own.
#ifndef CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_
#define CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_

#include "absl/status/status.h"
#include "trainer/session/session.h"

namespace capstan {

// Refuses a config that differs from rank 0's in more than the places of ranks
// and output. Collective.
absl::Status CompareConfigs(const RunPlan& plan);

// CompareParts compares the trainer's build, the data and the model before
// anything is set up; CompareStart compares the state that the run starts from,
// once a checkpoint is restored. Collective.
absl::Status CompareParts(const RunPlan& plan);
absl::Status CompareStart(const Session& session);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_COMPARE_RANKS_H_
