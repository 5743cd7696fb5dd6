// SPDX-License-Identifier: Apache-2.0
//
// What a rank of a simulated run does: it meets the others, holds the folder,
// goes on from the newest checkpoint, makes steps and saves them, by the code
// that training does it with.
#ifndef CAPSTAN_TESTS_SIM_RANK_H_
#define CAPSTAN_TESTS_SIM_RANK_H_

#include "absl/status/status.h"
#include "cluster/launch/rank_info.h"
#include "tests/sim/schedule.h"

namespace capstan::sim {

absl::Status RunRank(const RankInfo& info, const Schedule& schedule, int job);

// Reads all whole checkpoints in the run's folder, and checks them.
int Audit();

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_RANK_H_
