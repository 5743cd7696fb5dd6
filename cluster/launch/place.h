// SPDX-License-Identifier: Apache-2.0
//
// Finds this process's place among the ranks of a run. Launchers place
// processes and tell them by environment variables. There are two kinds:
// - per process: srun, mpirun, torchrun, Ray. Each process is one rank.
// - per node: Kubeflow (PET_*), SkyPilot, dstack, or launch { nodes .. }. There
//   is one process a host, whose n ranks our launcher forks; those of host k
//   are k * n .. k * n + n - 1.
//
// Several launchers may have set variables, as in a batch job that runs
// torchrun in srun. The first of these decides:
//  1. launch { nodes }: the user's word. An error if a launcher has started a
//     process for each rank (RANK with LOCAL_RANK; several mpirun or srun tasks
//     on a host).
//  2. CAPSTAN_INSIDE_RANK: a rank of a run has started this process, which is
//     none itself and runs alone.
//  3. The launchers in the order of the table in launchers.cc.
// With none of them, or with a single task, the process runs alone: our
// launcher forks ranks on this host only. In a batch job of several tasks the
// user has most likely forgotten srun: see Place::may_train.
//
// launch.rendezvous and launch.interface override the launcher, and so do
// MASTER_ADDR and MASTER_PORT under srun and mpirun, which set neither.
// CAPSTAN_RUN_TOKEN, if set (the same for all ranks), is the run's token.
#ifndef CAPSTAN_CLUSTER_LAUNCH_PLACE_H_
#define CAPSTAN_CLUSTER_LAUNCH_PLACE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "cluster/launch/rank_info.h"

namespace capstan {

// The default number of ranks on a host without GPUs.
constexpr int kCpuProcesses = 2;

// `launch` of a run's config.
struct LaunchSettings {
  int processes = 0;  // ranks on this host; 0: AUTO
  int nodes = 0;      // 0: not set
  absl::optional<int> node_rank;
  std::string rendezvous;  // "HOST:PORT" or "HOST"; "": not set
  std::string interface;   // "": not set
  std::vector<int> gpu_ids;
  int max_restarts = 0;
  int min_processes = 0;
  int max_processes = 0;  // 0: the world doesn't change
  double return_seconds = 0.0;
  NcclSettings nccl;
};

struct Place {
  // Whether our launcher forks the info.local_world_size ranks of this host
  // (LaunchRanks); otherwise this process is a rank (RunSingleRank).
  bool forks = true;
  // If `forks`, what the ranks of this host have in common: all fields but
  // rank, local_rank, gpu, listen_fd and threads.
  RankInfo info;
  // The index of each local rank's GPU among the visible ones. Empty: the local
  // rank itself.
  std::vector<int> gpu_ids;
  // The descriptor of the launcher's PMI service, for AskLauncher; or -1.
  int pmi_fd = -1;
  // If `forks`, how often the ranks may be started again, and whether their
  // state is to be mirrored (RankInfo::mirror_fds) for that.
  int max_restarts = 0;
  bool mirrors = false;
  // Whether hosts may come and go while the run goes on (launch.max_processes).
  // `info` then is that of a whole world, with unknown numbers, until the hosts
  // have agreed on one (cluster/members).
  bool changes = false;
  // Hosts to wait for before such a run begins; 0: unknown.
  int first_hosts = 0;
  // Why a run must not start here, although a config can be checked; or OK.
  absl::Status may_train;

  // Whether our launcher placed the ranks, all on one host.
  bool Alone() const { return forks && info.nodes == 1 && !changes; }
};

// Reads settings and environment on a host with `gpus` usable GPUs of
// `gpus_on_machine` (0: unknown). INVALID_ARGUMENT if they are incomplete or
// contradict each other: a FieldError about a field of `launch`, or a sentence
// that names the variables.
absl::StatusOr<Place> FindPlace(const LaunchSettings& settings, int gpus,
                                int gpus_on_machine = 0);

// Asks the launcher for what the environment lacks: under MPICH and Intel MPI,
// the hosts, a key and a token. Collective over the launcher's processes, and
// callable once per process; blocks until all have called it. UNAVAILABLE if
// the launcher doesn't answer within `seconds`.
absl::Status AskLauncher(Place* place, int seconds = 300);

// "SLURM: job 7, node 1 of 2, rank 3 of 4"; "" if our launcher placed the rank,
// on its own.
std::string PlaceText(const RankInfo& info);

// Makes rule 2 apply to processes that this one starts.
void MarkInsideRank();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_PLACE_H_
