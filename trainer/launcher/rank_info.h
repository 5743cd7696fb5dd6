// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_
#define CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace capstan {

// A process's identity within a run.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  // On rank 0 of our launcher, a socket already listening on master_port, so
  // that no other process can take the port. Else -1.
  int listen_fd = -1;
  // Intra-op threads of this rank.
  int threads = 1;
};

// The rank given by the environment, as torchrun sets it: RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. nullopt if neither
// RANK nor WORLD_SIZE is set; an error that names the variable if they are
// incomplete or inconsistent, or if srun or mpirun started several tasks
// without them.
absl::StatusOr<absl::optional<RankInfo>> RankFromEnvironment();

// Intra-op threads for each of `local_world_size` ranks on this machine:
// OMP_NUM_THREADS if set, else an equal share of the cores.
absl::StatusOr<int> ThreadsPerRank(int local_world_size);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_RANK_INFO_H_
