// SPDX-License-Identifier: Apache-2.0
//
// mpirun of Open MPI, and of MPICH and Intel MPI. Neither tells rank 0's
// address.
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "trainer/launcher/environment.h"
#include "trainer/launcher/place_sources.h"
#include "trainer/launcher/pmi1.h"

namespace capstan {
namespace {

constexpr char kTokenKey[] = "capstan_token";

// The variables of an mpirun.
struct Names {
  const char* size;
  const char* rank;
  const char* local_size;
  const char* local_rank;
};

constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Names kMpich = {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS",
                          "MPI_LOCALRANKID"};

// A number, or 0.
int Number(const char* name) {
  int value = 0;
  return absl::SimpleAtoi(Variable(name).value_or(""), &value) ? value : 0;
}

absl::StatusOr<Place> ReadMpi(const Names& names, const VariableSet& set) {
  Place place;
  place.forks = false;
  RankInfo& info = place.info;
  CAPSTAN_ASSIGN_OR_RETURN(info.world_size, set.Int(names.size, 1));
  CAPSTAN_ASSIGN_OR_RETURN(info.rank, set.Int(names.rank, 0, info.world_size));
  CAPSTAN_ASSIGN_OR_RETURN(info.local_world_size,
                           set.Int(names.local_size, 1, info.world_size + 1));
  // Doesn't follow from the rank: ranks may go round the hosts.
  CAPSTAN_ASSIGN_OR_RETURN(info.local_rank,
                           set.Int(names.local_rank, 0, info.local_world_size));
  if (info.local_world_size < info.world_size) {
    const int local = info.local_world_size;
    info.nodes = std::max(2, (info.world_size + local - 1) / local);
    info.node_rank = -1;
    info.master_addr.clear();
  }
  CAPSTAN_RETURN_IF_ERROR(TakeMasterVariables(&info));
  CAPSTAN_ASSIGN_OR_RETURN(info.threads, ThreadsPerRank(info.local_world_size));
  return place;
}

// A task alone has nobody to meet: our launcher's host.
MaybePlace OneTask(const PlaceRequest& request) {
  CAPSTAN_ASSIGN_OR_RETURN(Place place, PlaceAlone(request));
  return absl::optional<Place>(std::move(place));
}

// "openmpi-JOB-ID": of the scheduler's job, if there is one, and of the mpirun
// in it, as far as it's known.
std::string MpiKey(absl::string_view launcher, absl::string_view id) {
  std::string key(launcher);
  for (const char* name :
       {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"}) {
    const absl::optional<std::string> job = Variable(name);
    if (!job.has_value()) continue;
    absl::StrAppend(&key, "-", *job);
    break;
  }
  if (!id.empty()) absl::StrAppend(&key, "-", id);
  return RunKey(key);
}

bool IsSocket(int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode);
}

// Inside a session with mpiexec.
absl::Status AskMpich(Pmi1* pmi, RankInfo* info) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string space, pmi->Space());
  info->run_key = MpiKey("mpich", space);
  if (info->rank == 0) {
    if (info->token.empty()) info->token = RandomToken();
    CAPSTAN_RETURN_IF_ERROR(pmi->Put(kTokenKey, info->token));
  }
  CAPSTAN_RETURN_IF_ERROR(pmi->Barrier());
  if (info->rank != 0) {
    CAPSTAN_ASSIGN_OR_RETURN(info->token, pmi->Get(kTokenKey));
  }
  const absl::StatusOr<std::string> mapping = pmi->Get("PMI_process_mapping");
  if (absl::IsNotFound(mapping.status())) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(mapping.status());
  const absl::StatusOr<std::vector<int>> hosts =
      HostsOfRanks(*mapping, info->world_size);
  // Not needed to meet.
  if (!hosts.ok() || info->nodes == 1) return absl::OkStatus();
  const std::set<int> different(hosts->begin(), hosts->end());
  if (different.size() < 2) return absl::OkStatus();
  info->nodes = static_cast<int>(different.size());
  info->node_rank = static_cast<int>(
      std::distance(different.begin(), different.find((*hosts)[info->rank])));
  return absl::OkStatus();
}

}  // namespace

absl::optional<StartedTasks> TasksOfLaunchers() {
  if (const int tasks = Number(kOpenMpi.size)) {
    if (tasks == 1) return absl::nullopt;
    return StartedTasks{kOpenMpi.size, tasks, Number(kOpenMpi.local_size) > 1};
  }
  if (Variable(kMpich.local_rank).has_value()) {
    const int tasks = Number(kMpich.size);
    if (tasks <= 1) return absl::nullopt;
    return StartedTasks{kMpich.size, tasks, Number(kMpich.local_size) > 1};
  }
  const int tasks = Number("SLURM_STEP_NUM_TASKS");
  if (tasks <= 1) return absl::nullopt;
  return StartedTasks{"SLURM_STEP_NUM_TASKS", tasks,
                      tasks > Number("SLURM_STEP_NUM_NODES")};
}

MaybePlace FromOpenMpi(const PlaceRequest& request) {
  const auto size = Variable(kOpenMpi.size);
  const auto rank = Variable(kOpenMpi.rank);
  if (!size.has_value() && !rank.has_value()) return absl::optional<Place>();
  if (size == "1") return OneTask(request);
  const VariableSet set(
      size.has_value() ? absl::StrCat(kOpenMpi.size, " is ", *size)
                       : absl::StrCat(kOpenMpi.rank, " is ", *rank),
      "mpirun sets all of OMPI_COMM_WORLD_{SIZE,RANK,LOCAL_SIZE,LOCAL_RANK}; "
      "unset them all to train alone");
  CAPSTAN_ASSIGN_OR_RETURN(Place place, ReadMpi(kOpenMpi, set));
  place.info.placed_by = "Open MPI";
  const absl::optional<std::string> job = Variable("PMIX_NAMESPACE");
  place.info.run_key =
      MpiKey("openmpi",
             job.value_or(Variable("OMPI_MCA_ess_base_jobid").value_or("")));
  // 128 random bits that Open MPI 4 hands to all processes of a job, as a key
  // for networks that want one.
  place.info.token =
      Variable("OMPI_MCA_orte_precondition_transports").value_or("");
  return absl::optional<Place>(std::move(place));
}

MaybePlace FromMpich(const PlaceRequest& request) {
  const auto size = Variable(kMpich.size);
  const auto rank = Variable(kMpich.rank);
  const bool local = Variable(kMpich.local_rank).has_value();
  if (!size.has_value() && !rank.has_value() && !local) {
    return absl::optional<Place>();
  }
  // srun --mpi=pmi2 sets PMI_*, too.
  if (!local && Variable("SLURM_STEP_NUM_TASKS").has_value()) {
    return absl::optional<Place>();
  }
  if (size == "1") return OneTask(request);
  const VariableSet set(
      size.has_value()   ? absl::StrCat(kMpich.size, " is ", *size)
      : rank.has_value() ? absl::StrCat(kMpich.rank, " is ", *rank)
                         : absl::StrCat(kMpich.local_rank, " is set"),
      "mpirun of MPICH and Intel MPI sets all of PMI_SIZE, PMI_RANK, "
      "MPI_LOCALNRANKS and MPI_LOCALRANKID; with another launcher set RANK, "
      "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  CAPSTAN_ASSIGN_OR_RETURN(Place place, ReadMpi(kMpich, set));
  place.info.placed_by = "MPICH";
  place.info.run_key = MpiKey("mpich", "");
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> fd,
                           IntVariable("PMI_FD", 0));
  // A container's runtime may have closed it.
  if (fd.has_value() && IsSocket(*fd)) place.pmi_fd = *fd;
  return absl::optional<Place>(std::move(place));
}

absl::Status AskLauncher(Place* place, int seconds) {
  if (place->pmi_fd < 0) return absl::OkStatus();
  Pmi1 pmi(place->pmi_fd,
           std::chrono::steady_clock::now() + std::chrono::seconds(seconds));
  CAPSTAN_RETURN_IF_ERROR(pmi.Init());
  CAPSTAN_RETURN_IF_ERROR(AskMpich(&pmi, &place->info));
  return pmi.Finalize();
}

}  // namespace capstan
