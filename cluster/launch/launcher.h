// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_LAUNCH_LAUNCHER_H_
#define CAPSTAN_CLUSTER_LAUNCH_LAUNCHER_H_

#include <functional>

#include "absl/status/status.h"
#include "cluster/launch/changing_hosts.h"
#include "cluster/launch/place.h"
#include "cluster/launch/rank_info.h"

namespace capstan {

// A rank's main function. Any status but OK fails the run.
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
// kStopSignals is forwarded, so that ranks save and stop (StopRequested), and
// wakes suspended ranks; a second SIGINT or SIGTERM kills all, as does a rank
// that stays suspended. SIGTSTP suspends the ranks and this process, SIGCONT
// wakes all.
int LaunchRanks(int processes, const RankMain& rank_main);

// Like the above, for this host's ranks at `place`. If place.info.nodes says
// that there are several hosts, each runs a launcher, and all ranks meet at
// place.info's address; a single host's ranks meet at a free port of loopback,
// with a random token.
//
// After the death of a rank (by a signal, by an exit without a report, by the
// watchdog, or because it lost a peer on another host) all ranks of this host
// are killed and forked anew with RankInfo::restart incremented, at most
// place.max_restarts times. An error that a rank reports itself ends the run.
//
// `hosts`, unless null, says which hosts the run has, which then may change
// while it goes on; RankInfo::restart counts the worlds before. After a death
// all hosts' ranks are forked anew, and where a host comes or leaves they leave
// at the end of a step before that (WorldChanges; their status is ABORTED).
// SIGTERM then asks for this host to be left out, if the others may go on.
int LaunchRanks(const Place& place, const RankMain& rank_main,
                ChangingHosts* hosts = nullptr);

// Runs `rank_main` in this process, as the rank given by the environment (under
// torchrun, srun, ..) or as the only one. Errors go to standard error.
int RunSingleRank(const RankInfo& info, const RankMain& rank_main);

// What a rank's main function returns once it has left because WorldChanges().
absl::Status RankHasLeft();
bool IsRankHasLeft(const absl::Status& status);

// Returns the one of kStopSignals that this rank has received, or 0.
int StopRequested();

// Tells that the ranks have met. Before this is called, a signal ends a rank of
// RunSingleRank at once, since there is nothing to save and no group to agree
// with.
void RanksHaveMet();

// Records `signal` for this rank if it has received none, because the ranks
// agreed to stop after a signal to one of them.
void AdoptStop(int signal);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_LAUNCHER_H_
