// SPDX-License-Identifier: Apache-2.0
#include "trainer/launcher/rank_info.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "base/status.h"
#include "trainer/launcher/launcher.h"

namespace capstan {
namespace {

// The variable's value; nullopt if unset or empty.
absl::optional<std::string> Get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return absl::nullopt;
  return std::string(value);
}

absl::Status Error(absl::string_view name, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", name, " ", problem));
}

// An integer of at least `low` and below `high`.
absl::StatusOr<absl::optional<int>> GetInt(const char* name, int low,
                                           int high) {
  const absl::optional<std::string> text = Get(name);
  if (!text.has_value()) return absl::optional<int>();
  int value = 0;
  if (!absl::SimpleAtoi(*text, &value)) {
    return Error(name, absl::StrCat("must be an integer, is \"", *text, "\""));
  }
  if (value < low) {
    return Error(name, absl::StrCat("must be at least ", low, ", is ", value));
  }
  if (value >= high) {
    return Error(name,
                 absl::StrCat("must be less than ", high, ", is ", value));
  }
  return absl::optional<int>(value);
}

absl::Status FillPlace(RankInfo* info) {
  const int limit = std::numeric_limits<int>::max();
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> world,
                           GetInt("WORLD_SIZE", 1, limit));
  if (!world.has_value()) {
    return Error("WORLD_SIZE",
                 "is not set, but RANK is: set both, or neither to have the "
                 "trainer launch its own ranks");
  }
  info->world_size = *world;
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> rank,
                           GetInt("RANK", 0, *world));
  if (!rank.has_value()) {
    return Error("RANK",
                 "is not set, but WORLD_SIZE is: set both, or neither to have "
                 "the trainer launch its own ranks");
  }
  info->rank = *rank;

  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> local_world,
                           GetInt("LOCAL_WORLD_SIZE", 1, limit));
  if (local_world.has_value() && *local_world > *world) {
    return Error("LOCAL_WORLD_SIZE",
                 absl::StrCat("must be at most WORLD_SIZE (", *world, "), is ",
                              *local_world));
  }
  info->local_world_size = local_world.value_or(*world);
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> local_rank,
                           GetInt("LOCAL_RANK", 0, info->local_world_size));
  if (!local_rank.has_value() && info->local_world_size != *world) {
    return Error("LOCAL_RANK",
                 "is not set: with several machines (LOCAL_WORLD_SIZE less "
                 "than WORLD_SIZE) it is needed");
  }
  info->local_rank = local_rank.value_or(*rank);
  return absl::OkStatus();
}

absl::Status FillMaster(RankInfo* info) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> port,
                           GetInt("MASTER_PORT", 1, 65536));
  const absl::optional<std::string> address = Get("MASTER_ADDR");
  if (info->world_size > 1) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      if (!Get(name).has_value()) {
        return Error(name, absl::StrCat("is not set, but WORLD_SIZE is ",
                                        info->world_size,
                                        ": rank 0's address and a free port "
                                        "there are needed"));
      }
    }
  }
  info->master_addr = address.value_or(info->master_addr);
  info->master_port = port.value_or(0);
  return absl::OkStatus();
}

// Several srun or mpirun tasks that weren't given ranks would each train alone
// into the same folder. A batch script without srun is one process whatever
// SLURM_NTASKS says, and has no SLURM_STEP_*.
absl::Status RefuseOtherLaunchers() {
  const int limit = std::numeric_limits<int>::max();
  struct Launcher {
    const char* variable;
    const char* name;
    const char* one;    // starts one task
    const char* nodes;  // starts one per node
  };
  for (const Launcher& launcher :
       {Launcher{"SLURM_STEP_NUM_TASKS", "srun", "srun --ntasks=1",
                 "srun --ntasks-per-node=1"},
        Launcher{"OMPI_COMM_WORLD_SIZE", "mpirun", "mpirun -np 1",
                 "mpirun --map-by ppr:1:node"},
        Launcher{"PMI_SIZE", "mpirun", "mpirun -np 1", "mpirun -ppn 1"}}) {
    CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> tasks,
                             GetInt(launcher.variable, 1, limit));
    if (tasks.value_or(1) == 1) continue;
    return Error(
        launcher.variable,
        absl::StrCat("is ", *tasks, ", but RANK and WORLD_SIZE aren't set: ",
                     launcher.name, " has started ", *tasks,
                     " trainers, and each would train alone; start one (",
                     launcher.one,
                     "), which launches a rank for each GPU of its machine, or "
                     "on several machines `",
                     launcher.nodes, " torchrun --no-python .. trainer ..`"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<absl::optional<RankInfo>> RankFromEnvironment() {
  if (!Get("RANK").has_value() && !Get("WORLD_SIZE").has_value()) {
    CAPSTAN_RETURN_IF_ERROR(RefuseOtherLaunchers());
    return absl::optional<RankInfo>();
  }
  RankInfo info;
  CAPSTAN_RETURN_IF_ERROR(FillPlace(&info));
  CAPSTAN_RETURN_IF_ERROR(FillMaster(&info));
  CAPSTAN_ASSIGN_OR_RETURN(info.threads, ThreadsPerRank(info.local_world_size));
  return absl::optional<RankInfo>(info);
}

absl::StatusOr<int> ThreadsPerRank(int local_world_size) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const absl::optional<int> threads,
      GetInt("OMP_NUM_THREADS", 1, std::numeric_limits<int>::max()));
  return threads.value_or(std::max(1, AvailableCores() / local_world_size));
}

}  // namespace capstan
