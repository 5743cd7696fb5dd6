// SPDX-License-Identifier: Apache-2.0
//
// srun's tasks, and batch scripts that forgot it.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "base/status.h"
#include "trainer/launcher/environment.h"
#include "trainer/launcher/place_sources.h"
#include "trainer/launcher/slurm_lists.h"

namespace capstan {
namespace {

constexpr char kTasks[] = "SLURM_STEP_NUM_TASKS";
constexpr char kNodeList[] = "SLURM_STEP_NODELIST";
constexpr char kTasksPerNode[] = "SLURM_STEP_TASKS_PER_NODE";

absl::Status Prefixed(const char* name, const absl::Status& problem) {
  return VariableError(name, problem.message());
}

// A step of srun as this task sees it.
struct Step {
  int tasks = 0;
  int task = 0;
  int node = 0;
  std::vector<std::string> hosts;
  std::vector<int> tasks_of;  // each host
  std::string job;
  std::string step;
};

absl::StatusOr<Step> ReadStep(const VariableSet& set) {
  Step step;
  CAPSTAN_ASSIGN_OR_RETURN(step.tasks, set.Int(kTasks, 1));
  CAPSTAN_ASSIGN_OR_RETURN(step.task, set.Int("SLURM_PROCID", 0, step.tasks));
  CAPSTAN_ASSIGN_OR_RETURN(step.job, set.Text("SLURM_JOB_ID"));
  CAPSTAN_ASSIGN_OR_RETURN(step.step, set.Text("SLURM_STEP_ID"));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string list, set.Text(kNodeList));
  absl::StatusOr<std::vector<std::string>> hosts = ExpandNodeList(list);
  if (!hosts.ok()) return Prefixed(kNodeList, hosts.status());
  step.hosts = *std::move(hosts);
  CAPSTAN_ASSIGN_OR_RETURN(const std::string counts, set.Text(kTasksPerNode));
  absl::StatusOr<std::vector<int>> tasks_of = ExpandTasksPerNode(counts);
  if (!tasks_of.ok()) return Prefixed(kTasksPerNode, tasks_of.status());
  step.tasks_of = *std::move(tasks_of);
  if (step.tasks_of.size() != step.hosts.size()) {
    return VariableError(
        kTasksPerNode,
        absl::StrCat("is \"", counts, "\", of ", step.tasks_of.size(),
                     " hosts, but ", kNodeList, " is \"", list, "\", ",
                     step.hosts.size(),
                     " hosts: both must be of the same srun"));
  }
  const int64_t sum =
      std::accumulate(step.tasks_of.begin(), step.tasks_of.end(), int64_t{0});
  if (sum != step.tasks) {
    return VariableError(
        kTasksPerNode,
        absl::StrCat("is \"", counts, "\", ", sum, " tasks, but ", kTasks,
                     " is ", step.tasks, ": both must be of the same srun"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      step.node,
      set.Int("SLURM_NODEID", 0, static_cast<int>(step.hosts.size())));
  return step;
}

// The cores of a task are its own where srun binds tasks to cores.
absl::StatusOr<int> ThreadsOfTask(int local_tasks) {
  if (!Variable("OMP_NUM_THREADS").has_value()) {
    CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> cores,
                             IntVariable("SLURM_CPUS_PER_TASK", 1));
    if (cores.has_value()) return std::min(*cores, AvailableCores());
    const std::string bound = Variable("SLURM_CPU_BIND_TYPE").value_or("");
    if (absl::StartsWith(bound, "mask_cpu") ||
        absl::StartsWith(bound, "map_cpu")) {
      return AvailableCores();
    }
  }
  return ThreadsPerRank(local_tasks);
}

// Whether the only task of each host is to launch several ranks there.
bool OneTaskIsANode(const PlaceRequest& request, const Step& step) {
  if (step.tasks != static_cast<int>(step.hosts.size())) return false;
  const LaunchSettings& settings = request.settings;
  if (settings.processes > 0) return settings.processes > 1;
  if (!settings.gpu_ids.empty()) return settings.gpu_ids.size() > 1;
  return request.gpus > 1;
}

absl::StatusOr<Place> TaskPlace(const Step& step, const VariableSet& set) {
  Place place;
  place.forks = false;
  RankInfo& info = place.info;
  info.rank = step.task;
  info.world_size = step.tasks;
  info.node_rank = step.node;
  info.nodes = static_cast<int>(step.hosts.size());
  info.local_world_size = step.tasks_of[step.node];
  CAPSTAN_ASSIGN_OR_RETURN(info.local_rank,
                           set.Int("SLURM_LOCALID", 0, info.local_world_size));
  CAPSTAN_ASSIGN_OR_RETURN(info.threads, ThreadsOfTask(info.local_world_size));
  return place;
}

}  // namespace

MaybePlace FromSlurm(const PlaceRequest& request) {
  const absl::optional<std::string> tasks = Variable(kTasks);
  const absl::optional<std::string> list = Variable(kNodeList);
  if (!tasks.has_value() && !list.has_value()) return absl::optional<Place>();
  // `srun --ntasks=1`, or a shell in a step of its own.
  if (tasks == "1") return absl::optional<Place>();
  const VariableSet set(tasks.has_value()
                            ? absl::StrCat(kTasks, " is ", *tasks)
                            : absl::StrCat(kNodeList, " is \"", *list, "\""),
                        "srun sets both; start the trainer with srun itself "
                        "and its environment unchanged");
  CAPSTAN_ASSIGN_OR_RETURN(const Step step, ReadStep(set));
  Place place;
  if (OneTaskIsANode(request, step)) {
    CAPSTAN_ASSIGN_OR_RETURN(const int ranks, RanksHere(request));
    place = NodePlace(step.node, step.tasks, ranks);
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(place, TaskPlace(step, set));
  }
  RankInfo& info = place.info;
  info.placed_by = absl::StrCat("SLURM: job ", step.job);
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> restart,
                           IntVariable("SLURM_RESTART_COUNT", 0));
  info.run_key = RunKey(absl::StrCat(
      "slurm-", step.job, ".", step.step,
      restart.value_or(0) > 0 ? absl::StrCat("-restart-", *restart) : ""));
  if (info.nodes > 1) {
    // SLURM_LAUNCH_NODE_IPADDR would be srun's host. A hostfile may put task 0
    // on any host of the list, which is sorted.
    const bool any = Variable("SLURM_DISTRIBUTION").value_or("") == "arbitrary";
    info.master_addr = any && !place.forks ? "" : step.hosts[0];
  }
  CAPSTAN_RETURN_IF_ERROR(TakeMasterVariables(&info));
  return absl::optional<Place>(std::move(place));
}

absl::Status CheckBatchScript(const LaunchSettings& settings) {
  // A batch script is task 0 of its job, and in no step of srun. A shell by
  // salloc is no task, or one in a step of its own.
  if (!Variable("SLURM_PROCID").has_value() || Variable(kTasks).has_value() ||
      Variable(kNodeList).has_value()) {
    return absl::OkStatus();
  }
  const absl::optional<int> none;
  const int tasks = IntVariable("SLURM_NTASKS", 1).value_or(none).value_or(1);
  const int nodes = IntVariable("SLURM_NNODES", 1).value_or(none).value_or(1);
  if (nodes == 1 && (tasks == 1 || settings.processes > 0)) {
    return absl::OkStatus();
  }
  const bool by_tasks = tasks > 1;
  return VariableError(
      by_tasks ? "SLURM_NTASKS" : "SLURM_NNODES",
      absl::StrCat(
          "is ", by_tasks ? tasks : nodes,
          ", but SLURM_STEP_NODELIST is not set: the batch script runs "
          "the trainer once, on its first host; start it with srun (",
          nodes == 1 ? "or set launch.processes to have it launch the "
                       "ranks itself"
                     : "srun --nodes=1 --ntasks=1 for this host alone",
          ")"));
}

}  // namespace capstan
