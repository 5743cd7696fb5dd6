// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_LAUNCHER_H_
#define CAPSTAN_TRAINER_LAUNCHER_LAUNCHER_H_

#include <functional>

#include "absl/status/status.h"
#include "trainer/launcher/place.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// A rank's body. Any status but OK fails the run.
using RankMain = std::function<absl::Status(const RankInfo&)>;

// Runs `rank_main` in `processes` forked processes, each with its share of the
// cores, and returns the exit code: 0; 1 if a rank failed; kHungExitCode; 128 +
// signal if the run was asked to stop.
//
// Forks without exec, so that ranks share the pages of the parsed config and
// loaded plugins; the caller must not have started threads or touched a GPU.
// Lines that ranks write to standard error come out whole, prefixed with "[rank
// N] ". When a rank fails, its own error is printed first (one that IsLostPeer,
// base/lost_peer.h, is not the cause), and all others are killed. The first of
// kStopSignals is forwarded (ranks save, then stop; see StopRequested), and
// wakes ranks that are stopped; a second SIGINT or SIGTERM kills all, as does a
// rank that stays stopped. SIGTSTP stops the ranks and this process, SIGCONT
// wakes all.
int LaunchRanks(int processes, const RankMain& rank_main);

// The same for the ranks of this host at `place`, one of several hosts if
// place.info.nodes says so, each of which runs a launcher. Those of the other
// hosts meet ours at place.info's address; a single host's meet at a free port
// of loopback, with a random token.
//
// After the death of a rank (by a signal, by an exit that isn't its own, by the
// watchdog, or because it lost a peer on another host) all ranks of this host
// are killed and forked anew, with RankInfo::restart one higher, as often as
// place.max_restarts says; a status of a rank's own ends the run.
int LaunchRanks(const Place& place, const RankMain& rank_main);

// Runs `rank_main` in this process, as the rank given by the environment (under
// torchrun, srun, ..) or as the only one. Errors go to standard error.
int RunSingleRank(const RankInfo& info, const RankMain& rank_main);

// The one of kStopSignals that this rank has received, or 0.
int StopRequested();

// Until this is called a signal ends a rank of RunSingleRank at once: while it
// waits for the others there is nothing to save and nobody to agree with.
void RanksHaveMet();

// The ranks agreed to stop because of a signal to one of them: records `signal`
// for this rank, if it has received none.
void AdoptStop(int signal);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_LAUNCHER_H_
