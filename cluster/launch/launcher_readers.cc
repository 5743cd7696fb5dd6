// SPDX-License-Identifier: Apache-2.0
//
// Reads the rows of the table in launchers.cc.
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/launch/environment.h"
#include "cluster/launch/launchers.h"
#include "cluster/launch/network.h"
#include "cluster/launch/slurm_lists.h"

namespace capstan {
namespace {

// For launchers that don't say how many hosts there are, and which this is.
void GuessNodes(Reading* read, RankInfo* info) {
  const int local = info->local_world_size;
  const int world = info->world_size;
  const auto node = read->MaybeInt((*read)[kNode], 0, world);
  const auto nodes = read->MaybeInt((*read)[kNodes], 1, world + 1);
  const bool told = node.has_value() && nodes.has_value() && *node < *nodes;
  const int least = (world + local - 1) / local;
  info->nodes =
      told ? *nodes
           : std::max(2, node.has_value() ? least : nodes.value_or(least));
  info->node_rank = told ? *node : -1;
}

// Takes the user's MASTER_ADDR and MASTER_PORT if both are set, otherwise each
// that `info` lacks.
void TakeMaster(Reading* read, RankInfo* info) {
  const absl::optional<int> port = read->MaybeInt("MASTER_PORT", 1, 65536);
  // An address alone may be a cluster's default for everyone.
  if (port.has_value() || info->master_addr.empty()) {
    info->master_addr = Variable("MASTER_ADDR").value_or(info->master_addr);
  }
  info->master_port = port.value_or(0);
}

}  // namespace

void ReadTask(Reading* read, Place* place) {
  RankInfo& info = place->info;
  place->forks = false;
  info.world_size = read->Int(kSize, 1);
  info.rank = read->Int(kRank, 0, info.world_size);
  info.local_world_size = read->Int(kLocalSize, 1, info.world_size + 1);
  // Doesn't follow from the rank: ranks may go round the hosts.
  info.local_rank = read->Int(kLocalRank, 0, info.local_world_size);
  if (info.local_world_size < info.world_size) {
    GuessNodes(read, &info);
    const char* const master = (*read)[kMaster];
    info.master_addr = master != nullptr ? Variable(master).value_or("") : "";
  }
  TakeMaster(read, &info);
  info.threads = read->Take(ThreadsPerRank(info.local_world_size));
  if (const char* const token = (*read)[kToken]) {
    info.token = Variable(token).value_or("");
  }
  place->pmi_fd = read->MaybeInt((*read)[kPmi], 0).value_or(-1);
  // A container's runtime may have closed it.
  struct stat found;
  if (fstat(place->pmi_fd, &found) != 0 || !S_ISSOCK(found.st_mode)) {
    place->pmi_fd = -1;
  }
}

namespace {

// Whether `address` names this host, as far as that is known without asking a
// name server.
bool IsThisHost(const std::string& address) {
  const std::string own = HostName();
  const auto first_label = [](const std::string& name) {
    return name.substr(0, name.find('.'));
  };
  const std::vector<InterfaceAddress> all = InterfaceAddresses();
  return address == own || address == first_label(own) ||
         first_label(address) == own ||
         std::any_of(all.begin(), all.end(), [&](const InterfaceAddress& one) {
           return one.address.host() == address;
         });
}

// If nothing tells where the ranks are, all are on one host if rank 0's address
// is loopback; otherwise each has a host of its own, as in PyTorchJob's pods.
void GuessLocal(bool one_host, Reading* read, RankInfo* info) {
  info->local_rank = one_host ? info->rank : 0;
  if (one_host) return;
  read->FailIf(info->rank > 0 && IsThisHost(info->master_addr), "LOCAL_RANK",
               "is not set, but MASTER_ADDR (", info->master_addr,
               ") is this host, so that rank 0 runs here beside rank ",
               info->rank, ": set LOCAL_RANK and LOCAL_WORLD_SIZE");
  info->local_world_size = 1;
  info->nodes = info->world_size;
  info->node_rank = info->rank;
}

// Either of LOCAL_RANK and LOCAL_WORLD_SIZE may have been left out.
void ReadLocal(Reading* read, RankInfo* info) {
  const int world = info->world_size;
  const auto size = read->MaybeInt("LOCAL_WORLD_SIZE", 1);
  read->FailIf(size.value_or(1) > world, "LOCAL_WORLD_SIZE",
               "must be at most WORLD_SIZE (", world, "), is ",
               size.value_or(1));
  info->local_world_size = size.value_or(world);
  const auto rank = read->MaybeInt("LOCAL_RANK", 0, info->local_world_size);
  const std::string& address = info->master_addr;
  const bool loopback = address == "localhost" || address == "::1" ||
                        absl::StartsWith(address, "127.");
  const bool pod = IsSet("KUBERNETES_SERVICE_HOST");
  if (!rank.has_value() && !size.has_value()) {
    // A pod of rank 0 may know itself as "localhost".
    const bool one_host = loopback && !(pod && info->rank == 0);
    return GuessLocal(world == 1 || one_host, read, info);
  }
  const bool all_here = info->local_world_size == world;
  read->FailIf(!rank.has_value() && !all_here, "LOCAL_RANK",
               "is not set: with several machines (LOCAL_WORLD_SIZE less than "
               "WORLD_SIZE) it is needed");
  info->local_rank = rank.value_or(info->rank);
  if (all_here && (size.has_value() || loopback || world == 1)) return;
  // Set by hand, loopback leads nowhere else: LOCAL_WORLD_SIZE has ranks of one
  // host count as hosts. torchrun says how many hosts there are.
  if (loopback && !pod && !IsSet("TORCHELASTIC_RUN_ID")) return;
  GuessNodes(read, info);
}

}  // namespace

void ReadRank(Reading* read, Place* place) {
  RankInfo& info = place->info;
  const bool torchrun = IsSet("TORCHELASTIC_RUN_ID");
  place->forks = false;
  const int world = info.world_size = read->Int(kSize, 1);
  info.rank = read->Int(kRank, 0, world);
  info.master_port = read->MaybeInt("MASTER_PORT", 1, 65536).value_or(0);
  for (const char* const name : {"MASTER_ADDR", "MASTER_PORT"}) {
    read->FailIf(world > 1 && !IsSet(name), name,
                 "is not set, but WORLD_SIZE is ", world,
                 ": rank 0's address and a free port there are needed");
  }
  info.master_addr = Variable("MASTER_ADDR").value_or(info.master_addr);
  ReadLocal(read, &info);
  info.threads = read->Take(ThreadsPerRank(info.local_world_size));
  info.agent_store = Variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const StartedTasks started = TasksOfLaunchers().value_or(StartedTasks());
  // Each task would take itself for the same rank.
  read->FailIf(!torchrun && world < started.tasks, "WORLD_SIZE", "is ", world,
               ", but ", started.variable, " is ", started.tasks,
               ": unset RANK and WORLD_SIZE to have the ", started.tasks,
               " tasks be the ranks, or start ", world);
  // Ray Train's torch backend has joined the workers in Python before ours, so
  // that MASTER_PORT is its own store's: rank 0 publishes another port.
  if (!torchrun && (IsSet("RAY_JOB_ID") || IsSet("RAY_RAYLET_PID")) &&
      IsSet("NODE_RANK") && IsSet("ACCELERATE_TORCH_DEVICE") && world > 1) {
    info.master_port = 0;
  }
}

namespace {

// The cores of a task are its own where srun binds tasks to cores.
absl::StatusOr<int> ThreadsOfTask(int local_tasks) {
  if (!IsSet("OMP_NUM_THREADS")) {
    CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> cores,
                             IntVariable("SLURM_CPUS_PER_TASK", 1));
    const std::string bound = Variable("SLURM_CPU_BIND_TYPE").value_or("");
    if (cores.has_value() || absl::StartsWith(bound, "mask_cpu") ||
        absl::StartsWith(bound, "map_cpu")) {
      return std::min(cores.value_or(AvailableCores()), AvailableCores());
    }
  }
  return ThreadsPerRank(local_tasks);
}

// The hosts of a step of srun, and the tasks of each.
std::vector<std::string> ReadLists(Reading* read, int tasks,
                                   std::vector<int>* tasks_of) {
  const char* const list = (*read)[kHosts];
  const char* const counts = (*read)[kTasksOfHosts];
  const std::string text = read->Text(list);
  auto hosts = ExpandNodeList(text);
  read->FailIf(!hosts.ok(), list, hosts.status().message());
  const std::string counts_text = read->Text(counts);
  auto counted = ExpandTasksPerNode(counts_text);
  read->FailIf(!counted.ok(), counts, counted.status().message());
  if (!read->status().ok()) return {};
  *tasks_of = *std::move(counted);
  read->FailIf(hosts->size() != tasks_of->size(), counts, "is \"", counts_text,
               "\", of ", tasks_of->size(), " hosts, but ", list, " is \"",
               text, "\", ", hosts->size(),
               " hosts: both must be of the same srun");
  const int64_t sum =
      std::accumulate(tasks_of->begin(), tasks_of->end(), int64_t{0});
  read->FailIf(sum != tasks, counts, "is \"", counts_text, "\", ", sum,
               " tasks, but ", (*read)[kSize], " is ", tasks,
               ": both must be of the same srun");
  return *std::move(hosts);
}

}  // namespace

void ReadSlurm(Reading* read, Place* place) {
  RankInfo& info = place->info;
  const int tasks = read->Int(kSize, 1);
  const int task = read->Int(kRank, 0, tasks);
  read->Text("SLURM_JOB_ID");
  read->Text("SLURM_STEP_ID");
  std::vector<int> tasks_of;
  const std::vector<std::string> hosts = ReadLists(read, tasks, &tasks_of);
  const int nodes = static_cast<int>(hosts.size());
  const int node = read->Int(kNode, 0, nodes);
  if (!read->status().ok()) return;
  // The only task of each host launches its ranks, if there are to be several.
  const LaunchSettings& settings = read->request().settings;
  const int ids = static_cast<int>(settings.gpu_ids.size());
  const int wanted = settings.processes > 0 ? settings.processes
                     : ids > 0              ? ids
                                            : read->request().gpus;
  if (tasks == nodes && wanted > 1) {
    *place = NodePlace(node, nodes, read->Take(RanksHere(read->request())));
  } else {
    place->forks = false;
    info.world_size = tasks;
    info.rank = task;
    info.nodes = nodes;
    info.node_rank = node;
    info.local_world_size = tasks_of[node];
    info.local_rank = read->Int(kLocalRank, 0, info.local_world_size);
    if (!read->status().ok()) return;
    info.threads = read->Take(ThreadsOfTask(info.local_world_size));
  }
  if (nodes > 1) {
    // SLURM_LAUNCH_NODE_IPADDR would be srun's host. A hostfile may put task 0
    // on any host of the list, which is sorted.
    const bool any = Variable("SLURM_DISTRIBUTION") == "arbitrary";
    info.master_addr = any && !place->forks ? "" : hosts[0];
  }
  TakeMaster(read, &info);
}

namespace {

// "2"; "2:2" is torchrun's range of an elastic job that isn't elastic.
int CountNodes(Reading* read) {
  const std::string text = read->Text((*read)[kNodes]);
  const std::vector<std::string> ends = absl::StrSplit(text, ':');
  if (ends.size() == 1) return read->Int(kNodes, 1, kMostNodes + 1);
  int nodes = 1;
  read->FailIf(ends.size() > 2 || ends[0] != ends[1] ||
                   !absl::SimpleAtoi(ends[0], &nodes) || nodes < 1 ||
                   nodes > kMostNodes,
               (*read)[kNodes], "is \"", text,
               "\": the trainer can't do with a varying number of nodes; set "
               "the same minimum and maximum, or have torchrun start it");
  return nodes;
}

// Several words. Older versions of SkyPilot don't say how many.
std::vector<std::string> ListHosts(Reading* read) {
  const char* const list = (*read)[kHosts];
  const char* const nodes = (*read)[kNodes];
  const std::vector<std::string> hosts = absl::StrSplit(
      read->Text(list), absl::ByAnyChar(" \n\r\t"), absl::SkipEmpty());
  const int count = static_cast<int>(hosts.size());
  if (count == 0) read->Missing(list);
  const int said = read->MaybeInt(nodes, 1).value_or(count);
  read->FailIf(said != count, nodes, "is ", said, ", but ", list, " lists ",
               count, " hosts: set them to agree, or unset ", nodes);
  return hosts;
}

// PET_NPROC_PER_NODE, as torchrun reads it; 1 without it, as there.
int RanksByTorchrun(Reading* read, const char* name) {
  const PlaceRequest& request = read->request();
  const std::string text = Variable(name).value_or("1");
  if (request.settings.processes > 0 || text == "auto" ||
      (text == "gpu" && request.gpus > 0)) {
    return read->Take(RanksHere(request));
  }
  int ranks = AvailableCores();
  read->FailIf(text == "gpu", name,
               "is \"gpu\", but this machine has no GPU that can be used: set "
               "it to a number, or auto");
  read->FailIf(text != "cpu" && (!absl::SimpleAtoi(text, &ranks) || ranks < 1 ||
                                 ranks > kMostRanksOfANode),
               name, "must be a number, auto, gpu or cpu, is \"", text, "\"");
  read->FailIf(request.gpus > 0 && ranks > request.gpus, name, "asks for ",
               ranks, " ranks, but this machine has ", request.gpus,
               " GPUs: at most one rank a GPU");
  return ranks;
}

// The GPUs that the job has on each host. Without GPUs, or if the user says how
// many ranks, they don't matter.
int RanksByGpus(Reading* read, const char* name) {
  const PlaceRequest& request = read->request();
  const int gpus = read->MaybeInt(name, 0).value_or(0);
  if (request.settings.processes > 0 || !request.settings.gpu_ids.empty() ||
      request.gpus == 0 || gpus == 0) {
    return read->Take(RanksHere(request));
  }
  read->FailIf(gpus > request.gpus, name, "is ", gpus,
               ", but this machine has ", request.gpus,
               " GPUs that can be used (CUDA_VISIBLE_DEVICES): set "
               "launch.processes");
  return gpus;
}

}  // namespace

void ReadNode(Reading* read, Place* place) {
  std::vector<std::string> hosts;
  if ((*read)[kHosts] != nullptr) hosts = ListHosts(read);
  if (!read->status().ok()) return;
  const int nodes =
      hosts.empty() ? CountNodes(read) : static_cast<int>(hosts.size());
  const auto node = read->MaybeInt((*read)[kNode], 0, nodes);
  const char* const ranks = (*read)[kRanksOfNode];
  // torchrun's own default is node 0.
  if (nodes > 1 || ranks == nullptr) read->Text((*read)[kNode]);
  *place =
      NodePlace(node.value_or(0), nodes,
                ranks != nullptr ? RanksByTorchrun(read, ranks)
                                 : RanksByGpus(read, (*read)[kGpusOfNode]));
  if (nodes == 1) return;
  const char* address = (*read)[kMaster];
  const char* port = (*read)[kPort];
  const bool told =
      port != nullptr && !read->request().settings.rendezvous.empty();
  // MASTER_ADDR and MASTER_PORT stand in where the launcher has names of its
  // own for both.
  if (port != nullptr && !IsSet(address) && IsSet("MASTER_ADDR")) {
    address = "MASTER_ADDR";
  }
  if (hosts.empty() && !told) hosts = {read->Text(address)};
  if (port != nullptr && !IsSet(port) && !IsSet("MASTER_PORT") && !told) {
    read->Text(port);
  }
  place->info.master_addr =
      hosts.empty() ? Variable(address).value_or("") : hosts[0];
  place->info.master_port =
      read->MaybeInt(port != nullptr && IsSet(port) ? port : "MASTER_PORT", 1,
                     65536)
          .value_or(kDefaultPort);
}

}  // namespace capstan
