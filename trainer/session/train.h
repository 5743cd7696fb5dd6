// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_TRAIN_H_
#define CAPSTAN_TRAINER_SESSION_TRAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/step_sums.h"

namespace capstan {

// Runs one rank's training, from joining the others to the last file.
//
// OK: all steps are done (perhaps by an earlier run, which is then left
// untouched). CANCELLED: stopped by a signal, and saved. UNAVAILABLE: another
// rank failed, and its error is the cause.
absl::Status RunTraining(TrainJob* job, const RankInfo& rank,
                         ReadSums read = ReadSums::kAuto);

// The first `steps` steps of that run, and nothing after them: neither
// evaluations nor files but those that a run begins with. For what a step asks
// of a device; the process should end then.
absl::Status RunFirstSteps(TrainJob* job, const RankInfo& rank, int64_t steps);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_TRAIN_H_
