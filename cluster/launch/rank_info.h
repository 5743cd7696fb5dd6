// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_LAUNCH_RANK_INFO_H_
#define CAPSTAN_CLUSTER_LAUNCH_RANK_INFO_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

class ProcessGroup;

// Settings of NCCL; 0 stands for NCCL's default.
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
  // This host's index among `nodes`; -1 if the launcher doesn't tell, and then
  // `nodes` is a guess above 1. If `nodes` is 1, all ranks are on this host.
  int node_rank = 0;
  int nodes = 1;
  // The index of this rank's GPU among the visible ones; -1: local_rank.
  int gpu = -1;
  int GpuIndex() const { return gpu >= 0 ? gpu : local_rank; }
  // The launcher that placed the rank, for the banner: "SLURM: job 7",
  // "torchrun"; empty for our own.
  std::string placed_by;

  // Rank 0's address; empty if unknown, as with srun and mpirun: rank 0 then
  // publishes it in meeting_folder.
  std::string master_addr = "127.0.0.1";
  // The port where rank 0 listens; 0: a free port, which it publishes.
  int master_port = 0;
  // A folder that all hosts share, if master_addr or master_port isn't known.
  std::string meeting_folder;
  // Distinguishes this run from all others that may use meeting_folder or the
  // port, by job and restart ("slurm-7.0-restart-1"). Equal on all ranks.
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
  // Whether another launcher has started this process as a rank and may have
  // bound it to cores.
  bool own_process = false;
  // Intra-op threads of this rank.
  int threads = 1;
  // The cores it is bound to (cores.h), "0-7 (NUMA 0, near GPU 3)"; empty:
  // none.
  std::string cores;

  // If not null, this is the only rank, and the GPU is a stand-in that only
  // records what it is asked for (testing/roofline); the function wraps the
  // rank's group in one that acts for the others.
  std::unique_ptr<ProcessGroup> (*on_paper)(std::unique_ptr<ProcessGroup>) =
      nullptr;

  // How often our launcher has restarted the ranks.
  int restart = 0;
  // Whether a rank that leaves before all hosts have met may come again, since
  // its launcher restarts it.
  bool comes_again = false;
  // The fewest ranks to go on with after hosts are lost; 0: all.
  int min_processes = 0;
  // How long a host's ranks may take to come back after a death.
  double return_seconds = 30.0;
  NcclSettings nccl;
  // Memory that outlives the ranks: the same number of files (memfd) for each
  // local rank, those of rank 0 first; empty: none. They stay open as long as
  // the launcher lives, and keep their contents over a restart. A rank has
  // kOwnMirrorFiles of its own or, in a run that began on several hosts,
  // kOwnMirrorFilesOfHosts and kHeldMirrorFiles for a rank of another host.
  static constexpr int kOwnMirrorFiles = 2;
  static constexpr int kOwnMirrorFilesOfHosts = 3;
  static constexpr int kHeldMirrorFiles = 2;
  std::vector<int> mirror_fds;
};

// Returns the intra-op threads for each of `local_world_size` ranks on this
// machine: OMP_NUM_THREADS if set, otherwise an equal share of the cores.
absl::StatusOr<int> ThreadsPerRank(int local_world_size);

// Returns a token that nobody can guess, 128 random bits in hexadecimal.
std::string RandomToken();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_RANK_INFO_H_
