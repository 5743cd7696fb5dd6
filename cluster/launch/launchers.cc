// SPDX-License-Identifier: Apache-2.0
//
// The table of launchers, a row each, in order of precedence. To support a new
// one, add a row.
#include "cluster/launch/launchers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/strings/substitute.h"
#include "base/status.h"
#include "cluster/launch/environment.h"

namespace capstan {
namespace {

using Texts = Launcher::Texts;

// `like`, under another name.
Launcher Also(Launcher like, Texts name, Texts key, Texts with) {
  like.name = std::move(name);
  like.key = std::move(key);
  like.with = std::move(with);
  return like;
}

std::vector<Launcher> MakeLaunchers() {
  // By hand, or by a script around the trainer over what srun or mpirun say.
  const Launcher rank = {
      {"RANK, WORLD_SIZE"},
      {"rank", "-$MASTER_PORT"},
      {"RANK is", "WORLD_SIZE is"},
      {},
      {{kSize, "WORLD_SIZE"},
       {kRank, "RANK"},
       {kLocalSize, "LOCAL_WORLD_SIZE"},
       {kLocalRank, "LOCAL_RANK"},
       {kNodes, "GROUP_WORLD_SIZE"},
       {kNode, "GROUP_RANK"}},
      ReadRank,
      "set both, or neither to have the trainer launch its own ranks"};
  const Launcher kubeflow = {
      {"Kubeflow Trainer"},
      // The first pod may know its address as localhost.
      {"kubeflow", "-$PET_MASTER_PORT|MASTER_PORT"},
      {"PET_NNODES", "PET_NODE_RANK"},
      {},
      {{kNodes, "PET_NNODES"},
       {kNode, "PET_NODE_RANK"},
       {kRanksOfNode, "PET_NPROC_PER_NODE"},
       {kMaster, "PET_MASTER_ADDR"},
       {kPort, "PET_MASTER_PORT"}},
      ReadNode,
      "the job must set PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and "
      "PET_MASTER_PORT; one with an elasticPolicy needs torchrun, which "
      "numbers its nodes"};
  const Launcher openmpi = {
      {"Open MPI"},
      {"openmpi", "-$SLURM_JOB_ID|PBS_JOBID|LSB_JOBID|JOB_ID",
       "-$PMIX_NAMESPACE|OMPI_MCA_ess_base_jobid"},
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
      {},
      {{kSize, "OMPI_COMM_WORLD_SIZE"},
       {kRank, "OMPI_COMM_WORLD_RANK"},
       {kLocalSize, "OMPI_COMM_WORLD_LOCAL_SIZE"},
       {kLocalRank, "OMPI_COMM_WORLD_LOCAL_RANK"},
       // Of Open MPI 4: a key for networks that want one.
       {kToken, "OMPI_MCA_orte_precondition_transports"}},
      ReadTask,
      "mpirun sets all of OMPI_COMM_WORLD_{SIZE,RANK,LOCAL_SIZE,LOCAL_RANK}; "
      "unset them all to train alone",
      Single::kAlone};
  const Launcher mpich = {
      // and Intel MPI
      {"MPICH"},
      {"mpich", "-$SLURM_JOB_ID|PBS_JOBID|LSB_JOBID|JOB_ID"},
      {"PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID is set"},
      // srun --mpi=pmi2 sets PMI_*, too.
      {"MPI_LOCALRANKID", "!SLURM_STEP_NUM_TASKS"},
      {{kSize, "PMI_SIZE"},
       {kRank, "PMI_RANK"},
       {kLocalSize, "MPI_LOCALNRANKS"},
       {kLocalRank, "MPI_LOCALRANKID"},
       {kPmi, "PMI_FD"}},
      ReadTask,
      "mpirun of MPICH and Intel MPI sets all of PMI_SIZE, PMI_RANK, "
      "MPI_LOCALNRANKS and MPI_LOCALRANKID; with another launcher set RANK, "
      "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
      Single::kAlone};
  const Launcher slurm = {
      {"SLURM: job $SLURM_JOB_ID"},
      {"slurm-$SLURM_JOB_ID", ".$SLURM_STEP_ID",
       "-restart-$SLURM_RESTART_COUNT"},
      {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST is \"$0\""},
      {},
      {{kSize, "SLURM_STEP_NUM_TASKS"},
       {kRank, "SLURM_PROCID"},
       {kLocalRank, "SLURM_LOCALID"},
       {kNodes, "SLURM_STEP_NUM_NODES"},
       {kNode, "SLURM_NODEID"},
       {kHosts, "SLURM_STEP_NODELIST"},
       {kTasksOfHosts, "SLURM_STEP_TASKS_PER_NODE"}},
      ReadSlurm,
      "srun sets both; start the trainer with srun itself and its environment "
      "unchanged",
      Single::kIgnored};  // a shell in a step of its own
  // A task that is tried again has the same id, on other hosts.
  const Launcher skypilot = {
      {"SkyPilot"},
      {"skypilot", "-$SKYPILOT_TASK_ID", "-$host"},
      {"SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS is set"},
      {},
      {{kNodes, "SKYPILOT_NUM_NODES"},
       {kNode, "SKYPILOT_NODE_RANK"},
       {kHosts, "SKYPILOT_NODE_IPS"},
       {kGpusOfNode, "SKYPILOT_NUM_GPUS_PER_NODE"}},
      ReadNode,
      "SkyPilot sets both for a task's `run`; unset both to train on this host "
      "alone"};
  const Launcher dstack = {
      {"dstack"},
      {"dstack", "-$DSTACK_RUN_ID|DSTACK_RUN_NAME", "-$host"},
      {"DSTACK_NODES_NUM", "DSTACK_NODE_RANK"},
      {},
      {{kNodes, "DSTACK_NODES_NUM"},
       {kNode, "DSTACK_NODE_RANK"},
       {kMaster, "DSTACK_MASTER_NODE_IP"},
       {kGpusOfNode, "DSTACK_GPUS_PER_NODE"}},
      ReadNode,
      "dstack sets DSTACK_NODES_NUM, DSTACK_NODE_RANK and "
      "DSTACK_MASTER_NODE_IP; unset them all to train on this host alone"};
  Launcher torchrun =
      Also(rank, {"torchrun", ": run $TORCHELASTIC_RUN_ID"},
           {"torchrun", "-$TORCHELASTIC_RUN_ID", "-$host", "-$MASTER_PORT",
            "-restart-$TORCHELASTIC_RESTART_COUNT"},
           {"TORCHELASTIC_RUN_ID"});
  torchrun.signs = {"RANK is"};
  return {
      // The innermost, whatever started it, be it srun or a pod with PET_*.
      torchrun,
      // RANK and WORLD_SIZE beside PET_* are a pod's.
      Also(kubeflow, {"PyTorchJob"}, kubeflow.key, {"WORLD_SIZE"}), kubeflow,
      Also(rank, {"Ray"}, {"ray", "-$RAY_JOB_ID", "-$host", "-$MASTER_PORT"},
           {"RAY_JOB_ID", "RAY_RAYLET_PID"}),
      Also(rank, {"Kubernetes"}, rank.key, {"KUBERNETES_SERVICE_HOST"}), rank,
      // Under SLURM mpirun has srun start its daemons: SLURM_* are a daemon's.
      openmpi, mpich, slurm,
      // These describe the host, for whatever runs on it.
      skypilot, dstack};
}

const std::vector<Launcher>& Launchers() {
  static const auto* const launchers =
      new std::vector<Launcher>(MakeLaunchers());
  return *launchers;
}

std::string FirstWord(absl::string_view text) {
  return std::string(text.substr(0, text.find(' ')));
}

// A number, or 0.
int Number(const char* name) {
  int value = 0;
  return absl::SimpleAtoi(Variable(name).value_or(""), &value) ? value : 0;
}

bool Holds(absl::string_view condition) {
  const bool set = !absl::ConsumePrefix(&condition, "!");
  return IsSet(FirstWord(condition).c_str()) == set;
}

bool IsThere(const Launcher& launcher) {
  const auto one_holds = [&](const Texts& names) {
    return std::any_of(names.begin(), names.end(), Holds);
  };
  return one_holds(launcher.signs) &&
         (launcher.with.empty() || one_holds(launcher.with));
}

// A name or key of the table.
std::string Joined(const Texts& pieces, const RankInfo& info) {
  std::string joined;
  for (const char* const piece : pieces) {
    const std::vector<std::string> parts =
        absl::StrSplit(piece, absl::MaxSplits('$', 1));
    std::string value = parts.back() == "host" ? info.master_addr : "";
    for (absl::string_view name : absl::StrSplit(parts.back(), '|')) {
      if (value.empty())
        value = Variable(std::string(name).c_str()).value_or("");
    }
    // torchrun's id of a run without one.
    const bool told = !value.empty() && value != "none";
    if (told || parts.size() == 1) absl::StrAppend(&joined, parts[0]);
    if (told && parts.size() > 1) absl::StrAppend(&joined, value);
  }
  return joined;
}

// INVALID_ARGUMENT if this is a batch script whose tasks srun should start. It
// is task 0 of its job, and in no step of srun. A shell by salloc is no task,
// or one in a step of its own.
absl::Status CheckBatchScript(const LaunchSettings& settings) {
  if (!IsSet("SLURM_PROCID") || IsSet("SLURM_STEP_NUM_TASKS") ||
      IsSet("SLURM_STEP_NODELIST")) {
    return absl::OkStatus();
  }
  const int tasks = std::max(1, Number("SLURM_NTASKS"));
  const int nodes = std::max(1, Number("SLURM_NNODES"));
  if (nodes == 1 && (tasks == 1 || settings.processes > 0)) {
    return absl::OkStatus();
  }
  return VariableError(
      tasks > 1 ? "SLURM_NTASKS" : "SLURM_NNODES",
      absl::StrCat("is ", tasks > 1 ? tasks : nodes,
                   ", but SLURM_STEP_NODELIST is not set: the batch script "
                   "runs the trainer once, on its first host; start it with "
                   "srun (",
                   nodes == 1 ? "or set launch.processes to have it launch the "
                                "ranks itself"
                              : "srun --nodes=1 --ntasks=1 for this host alone",
                   ")"));
}

}  // namespace

void Reading::Missing(const char* name) {
  const auto sign =
      std::find_if(launcher_.signs.begin(), launcher_.signs.end(), Holds);
  const std::string variable = FirstWord(*sign);
  FailIf(true, name, "is not set, but ",
         variable == *sign
             ? absl::StrCat(variable, " is ", *Variable(variable.c_str()))
             : absl::Substitute(*sign, *Variable(variable.c_str())),
         ": ", launcher_.advice);
}

absl::StatusOr<Place> FromEnvironment(const PlaceRequest& request) {
  for (const Launcher& launcher : Launchers()) {
    if (!IsThere(launcher)) continue;
    Reading read(launcher, request);
    if (launcher.single != Single::kRank && Variable(read[kSize]) == "1") {
      if (launcher.single == Single::kAlone) return PlaceAlone(request);
      continue;
    }
    Place place;
    launcher.reader(&read, &place);
    CAPSTAN_RETURN_IF_ERROR(read.status());
    place.info.placed_by = Joined(launcher.name, place.info);
    place.info.run_key = RunKey(Joined(launcher.key, place.info));
    return place;
  }
  // It numbers processes without telling how many there are.
  if (IsSet("PMIX_RANK") && IsSet("PRTE_LAUNCHED")) {
    return VariableError(
        "PMIX_RANK",
        "is set, but OMPI_COMM_WORLD_SIZE is not: prterun doesn't say how many "
        "ranks there are; use mpirun, or prterun --personality ompi");
  }
  CAPSTAN_ASSIGN_OR_RETURN(Place place, PlaceAlone(request));
  place.may_train = CheckBatchScript(request.settings);
  return place;
}

absl::optional<StartedTasks> TasksOfLaunchers() {
  for (const Launcher& launcher : Launchers()) {
    if (launcher.single == Single::kRank) continue;
    const auto name = [&](Fact fact) { return launcher.facts.at(fact); };
    // PMI_* alone doesn't tell which launcher set it.
    const bool pmi = launcher.facts.count(kPmi) > 0;
    const int tasks = Number(name(kSize));
    if (pmi ? !IsSet(name(kLocalRank)) : tasks == 0) continue;
    if (tasks <= 1) return absl::nullopt;
    const bool several_here = launcher.facts.count(kLocalSize) > 0
                                  ? Number(name(kLocalSize)) > 1
                                  : tasks > Number(name(kNodes));
    return StartedTasks{name(kSize), tasks, several_here};
  }
  return absl::nullopt;
}

}  // namespace capstan
