// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_
#define CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace capstan {

// A process's place in a run.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  // On rank 0 of our own launcher: a socket that already listens on
  // master_port, so that no other process can take the port. Else -1.
  int listen_fd = -1;
  // Intra-op threads of this rank.
  int threads = 1;
};

// The place that torchrun (or whoever else) has set in the environment: RANK,
// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. nullopt
// when RANK and WORLD_SIZE are not set; an error that names the variable when
// they are incomplete or make no sense, or when srun or mpirun has started
// several tasks without them.
absl::StatusOr<absl::optional<RankInfo>> RankFromEnvironment();

// Intra-op threads of each of `local_world_size` ranks of this machine:
// OMP_NUM_THREADS where it is set, else an equal share of the cores.
absl::StatusOr<int> ThreadsPerRank(int local_world_size);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_
