// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_TRAIN_H_
#define CAPSTAN_TRAINER_SESSION_TRAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cluster/launch/rank_info.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// Runs one rank's training, from joining the others to the last file.
//
// Returns OK if all steps are done (perhaps by an earlier run, whose files then
// stay untouched), CANCELLED if a signal stopped the run, which is saved, and
// UNAVAILABLE if another rank's error is the cause.
absl::Status RunTraining(TrainJob* job, const RankInfo& rank);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_TRAIN_H_
