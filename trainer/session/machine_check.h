// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_MACHINE_CHECK_H_
#define CAPSTAN_TRAINER_SESSION_MACHINE_CHECK_H_

#include "absl/status/status.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// Returns an error about launch.processes if so many ranks on this machine
// would only wait for each other. Fewer are slow, but allowed.
absl::Status CheckRanks(int ranks_here);

// Returns an error about batch.micro_batch_size, with sizes that would fit, if
// by a plan for samples of the average length the tensors of `ranks_here` of
// the run's `world_size` ranks can't fit into this machine. Plans aren't exact,
// so a run that may just fit is accepted.
absl::Status CheckTensors(const TrainJob& job, int world_size, int ranks_here);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_MACHINE_CHECK_H_
