// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_
#define CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

// NCCL's settings; 0: NCCL's own.
struct NcclSettings {
  // How long a collective may take before the rank gives up; 0: no limit.
  double timeout_seconds = 0.0;
  int64_t buffer_mib = 0;
  // Thread blocks of a collective.
  int min_ctas = 0;
  int max_ctas = 0;
};

// A process's identity within a run, and how it meets the others.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  // Of this host among `nodes`; -1 if the launcher doesn't say, and then
  // `nodes` is a guess above 1. A `nodes` of 1 is exact: all ranks are on this
  // host.
  int node_rank = 0;
  int nodes = 1;
  // The index of this rank's GPU among the visible ones; -1: local_rank.
  int gpu = -1;
  int GpuIndex() const { return gpu >= 0 ? gpu : local_rank; }
  // Who placed the rank, for the banner: "SLURM: job 7", "torchrun"; empty if
  // our launcher did, on its own.
  std::string placed_by;

  // Rank 0's address; empty if nobody told, as with srun and mpirun: rank 0
  // then publishes it in meeting_folder.
  std::string master_addr = "127.0.0.1";
  // Where rank 0 listens; 0: on a free port, which it publishes.
  int master_port = 0;
  // A folder that all hosts share, if master_addr or master_port isn't known.
  std::string meeting_folder;
  // Tells this run from every other that may use meeting_folder or the port:
  // job and restart ("slurm-7.0-restart-1"). Equal on all ranks.
  std::string run_key;
  // A secret that the launcher handed to all ranks; empty if it couldn't.
  std::string token;
  // The network interface for traffic between hosts; empty: the one that routes
  // to rank 0.
  std::string interface;
  // master_addr:master_port is the store of torchrun's agent, not of rank 0.
  bool agent_store = false;

  // On rank 0 of our launcher, a socket already listening on master_port, so
  // that no other process can take the port. Else -1.
  int listen_fd = -1;
  // A launcher has started this very process as the rank, and may have bound it
  // to cores.
  bool own_process = false;
  // Intra-op threads of this rank.
  int threads = 1;
  // What it is bound to (cores.h), "0-7 (NUMA 0, near GPU 3)"; empty: nothing.
  std::string cores;

  // The others aren't there: the GPU is a stand-in that only notes what it is
  // asked for (`trainer roofline`).
  bool on_paper = false;

  // How often our launcher has started the ranks anew.
  int restart = 0;
  // Of several hosts: a rank that leaves before all have met may come again, as
  // its launcher starts it anew.
  bool comes_again = false;
  // The fewest ranks to go on with when hosts are gone; 0: all.
  int min_processes = 0;
  // How long a host's ranks may take to come back after a death.
  double return_seconds = 30.0;
  NcclSettings nccl;
  // Memory that outlives the ranks: as many files (memfd) for each local rank,
  // those of rank 0 first; empty: there is none. Open for as long as the
  // launcher lives, and after a restart they hold what the ranks before left in
  // them. A rank's are kOwnMirrorFiles of its own or, in a run that began on
  // several hosts, kOwnMirrorFilesOfHosts and kHeldMirrorFiles for a rank of
  // another host.
  static constexpr int kOwnMirrorFiles = 2;
  static constexpr int kOwnMirrorFilesOfHosts = 3;
  static constexpr int kHeldMirrorFiles = 2;
  std::vector<int> mirror_fds;
};

// Intra-op threads for each of `local_world_size` ranks on this machine:
// OMP_NUM_THREADS if set, else an equal share of the cores.
absl::StatusOr<int> ThreadsPerRank(int local_world_size);

// A token for a run, 128 random bits in hexadecimal.
std::string RandomToken();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_
