// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_LAUNCHER_H_
#define CAPSTAN_TRAINER_LAUNCHER_LAUNCHER_H_

#include <functional>

#include "absl/status/status.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// What a rank does. OK: it is done. Any other status fails the run.
using RankMain = std::function<absl::Status(const RankInfo&)>;

// Runs `rank_main` in `processes` forked processes of this machine, each with
// its share of the cores, and returns the exit code of the whole: 0; 1 when a
// rank failed; 128 + signal when the run was asked to stop.
//
// Forks without exec: the parent has parsed the config and loaded the plugins
// by then, and ranks share those pages; so it must not have started threads or
// touched a GPU. Lines that ranks write to standard error come out whole, with
// "[rank N] " before each. When a rank fails, its own error is printed first
// (a rank that only saw a peer vanish, UNAVAILABLE, is not the cause), and all
// others are ended. SIGINT and SIGTERM are passed on once (ranks save, then
// stop; see StopRequested); a second one ends all at once.
int LaunchRanks(int processes, const RankMain& rank_main);

// Runs `rank_main` in this process, as the rank that the environment says
// (under torchrun) or as the only one; errors go to standard error.
int RunSingleRank(const RankInfo& info, const RankMain& rank_main);

// Whether SIGINT or SIGTERM has come to this rank: which one, or 0.
int StopRequested();

// Until this is called a signal ends a rank of RunSingleRank at once: while it
// waits for the others there is nothing to save, and nobody to agree with.
void RanksHaveMet();

// The ranks have agreed to stop because of a signal to one of them: counts as
// `signal` to this rank, if none has come to it.
void AdoptStop(int signal);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_LAUNCHER_H_
