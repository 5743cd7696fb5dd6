// SPDX-License-Identifier: Apache-2.0
//
// Where this process belongs among the ranks of a run. Launchers place
// processes, and say so in environment variables; there are two kinds:
// - per process: srun, mpirun, torchrun, Ray. Each process is one rank.
// - per node: Kubeflow (PET_*), SkyPilot, dstack, or launch { nodes .. }. One
//   process a host, whose ranks our launcher forks: as many on each, those of
//   host k being k * n .. k * n + n - 1.
//
// Several may have left variables: a batch job that runs torchrun in srun. The
// first of these that is there decides:
//  1. launch { nodes }: the user's word. An error if a launcher has started a
//     process for each rank (RANK with LOCAL_RANK; several mpirun or srun tasks
//     on a host).
//  2. CAPSTAN_INSIDE_RANK: a rank of a run has started this process, which is
//     none itself and runs alone.
//  3. torchrun (TORCHELASTIC_RUN_ID and RANK): the innermost launcher, whatever
//     started it, be it srun or a pod with PET_*.
//  4. PET_NNODES, PET_NODE_RANK: RANK and WORLD_SIZE beside them are a pod's.
//  5. RANK, WORLD_SIZE: set by hand, or by a script around the trainer over
//     what srun or mpirun say; by Ray Train; by PyTorchJob for its pods.
//     WORLD_SIZE below the number of tasks of srun or mpirun is an error.
//  6. OMPI_COMM_WORLD_*, then MPI_LOCALRANKID and PMI_*: under SLURM mpirun has
//     srun start its daemons, so that SLURM_* are those of a daemon.
//  7. SLURM_STEP_*, if srun started several tasks. One task on each host is a
//     node rather than a rank if launch.processes asks for several ranks, or is
//     AUTO and the host has several GPUs.
//  8. SKYPILOT_*, DSTACK_*: describe the host, for whatever runs on it.
// With none of them, or with a single task, the process runs alone: our
// launcher forks ranks on this host only. In a batch script of several tasks
// that is most likely srun forgotten: see Place::may_train.
//
// launch.rendezvous and launch.interface win over what the launcher says, and
// so do MASTER_ADDR and MASTER_PORT under srun and mpirun, which set neither.
// CAPSTAN_RUN_TOKEN, if set (the same for all ranks), is the run's token.
#ifndef CAPSTAN_TRAINER_LAUNCHER_PLACE_H_
#define CAPSTAN_TRAINER_LAUNCHER_PLACE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// Ranks on a host without GPUs, if nobody says how many.
constexpr int kCpuProcesses = 2;

// Where rank 0 listens if a per-node launcher names its host and no port
// (SkyPilot, dstack, a rendezvous of "HOST"): torchrun's default.
constexpr int kDefaultPort = 29500;

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
  double return_seconds = 0.0;
  NcclSettings nccl;
};

struct Place {
  // Whether our launcher forks the ranks of this host (LaunchRanks), as many as
  // info.local_world_size; else this process is one (RunSingleRank).
  bool forks = true;
  // If `forks`, what holds for all ranks of this host: all but rank,
  // local_rank, gpu, listen_fd and threads.
  RankInfo info;
  // By local rank, the GPU of each: its index among the visible ones. Empty:
  // the local rank.
  std::vector<int> gpu_ids;
  // The descriptor of the launcher's PMI service, for AskLauncher; or -1.
  int pmi_fd = -1;
  // If `forks`, how often the ranks may be started again, and whether their
  // state is to be mirrored (RankInfo::mirror_fds) for that.
  int max_restarts = 0;
  bool mirrors = false;
  // OK, or why a run must not start here, although a config can be checked.
  absl::Status may_train;

  // Our launcher alone decides, on one host and on its own.
  bool Alone() const { return forks && info.nodes == 1; }
};

// Reads settings and environment, on a host with `gpus` GPUs that this process
// can use, of `gpus_on_machine`; 0: unknown.
// INVALID_ARGUMENT if they are incomplete or contradict each other: a
// FieldError about a field of `launch`, or a sentence that names the variables.
absl::StatusOr<Place> FindPlace(const LaunchSettings& settings, int gpus,
                                int gpus_on_machine = 0);

// Adds what the environment doesn't say and the launcher can be asked: under
// MPICH and Intel MPI, the hosts, a key and a token. Collective over the
// launcher's processes, and for once in a process; blocks until all have
// called. UNAVAILABLE if the launcher doesn't answer within `seconds`.
absl::Status AskLauncher(Place* place, int seconds = 300);

// "SLURM: job 7, node 1 of 2, rank 3 of 4"; "" if our launcher placed the rank,
// on its own.
std::string PlaceText(const RankInfo& info);

// Makes rule 2 hold in processes that this one starts.
void MarkInsideRank();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_PLACE_H_
