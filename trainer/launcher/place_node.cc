// SPDX-License-Identifier: Apache-2.0
//
// Launchers that start one process a host: our launcher forks the ranks.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/machine.h"
#include "base/status.h"
#include "trainer/launcher/environment.h"
#include "trainer/launcher/place_sources.h"

namespace capstan {
namespace {

// "2"; "2:2" is torchrun's range of an elastic job that isn't elastic.
absl::StatusOr<int> KubeflowNodes(const VariableSet& set) {
  constexpr char kNodes[] = "PET_NNODES";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, set.Text(kNodes));
  const std::vector<std::string> ends = absl::StrSplit(text, ':');
  if (ends.size() == 1) return set.Int(kNodes, 1, kMostNodes + 1);
  int least = 0;
  if (ends.size() == 2 && ends[0] == ends[1] &&
      absl::SimpleAtoi(ends[0], &least) && least > 0 && least <= kMostNodes) {
    return least;
  }
  return VariableError(
      kNodes, absl::StrCat("is \"", text,
                           "\": the trainer can't do with a varying number of "
                           "nodes; set the same minimum and maximum, or have "
                           "torchrun start it"));
}

// PET_NPROC_PER_NODE, as torchrun reads it; 1 without it, as there.
absl::StatusOr<int> KubeflowRanks(const PlaceRequest& request) {
  constexpr char kRanks[] = "PET_NPROC_PER_NODE";
  if (request.settings.processes > 0) return RanksHere(request);
  const std::string text = Variable(kRanks).value_or("1");
  if (text == "auto") return RanksHere(request);
  if (text == "gpu") {
    if (request.gpus > 0) return RanksHere(request);
    return VariableError(kRanks,
                         "is \"gpu\", but this machine has no GPU that can be "
                         "used: set it to a number, or auto");
  }
  int ranks = AvailableCores();
  if (text != "cpu") {
    if (!absl::SimpleAtoi(text, &ranks) || ranks < 1 ||
        ranks > kMostRanksOfANode) {
      return VariableError(
          kRanks, absl::StrCat("must be a number, auto, gpu or cpu, is \"",
                               text, "\""));
    }
  }
  if (request.gpus > 0 && ranks > request.gpus) {
    return VariableError(
        kRanks,
        absl::StrCat("asks for ", ranks, " ranks, but this machine has ",
                     request.gpus, " GPUs: at most one rank a GPU"));
  }
  return ranks;
}

// Of SkyPilot and dstack: the GPUs that the job has on each host. Without GPUs,
// or if the user says how many ranks, they don't matter.
absl::StatusOr<int> RanksByGpus(const PlaceRequest& request,
                                const char* variable) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> gpus,
                           IntVariable(variable, 0));
  if (request.settings.processes > 0 || !request.settings.gpu_ids.empty() ||
      request.gpus == 0 || gpus.value_or(0) == 0) {
    return RanksHere(request);
  }
  if (*gpus > request.gpus) {
    return VariableError(
        variable,
        absl::StrCat("is ", *gpus, ", but this machine has ", request.gpus,
                     " GPUs that can be used (CUDA_VISIBLE_DEVICES): "
                     "set launch.processes"));
  }
  return *gpus;
}

// The port of launchers that name a host only.
absl::Status TakeHost(const std::string& host, RankInfo* info) {
  info->master_addr = host;
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> port,
                           IntVariable("MASTER_PORT", 1, 65536));
  info->master_port = port.value_or(kDefaultPort);
  return absl::OkStatus();
}

// What is there, for messages: "NAME is VALUE".
std::string Said(const char* name) {
  return absl::StrCat(name, " is ", Variable(name).value_or("not set"));
}

}  // namespace

absl::StatusOr<Place> FromSettings(const PlaceRequest& request) {
  const LaunchSettings& settings = request.settings;
  const absl::optional<StartedTasks> started = TasksOfLaunchers();
  std::string other;
  if (Variable("RANK").has_value() &&
      (Variable("LOCAL_RANK").has_value() ||
       Variable("TORCHELASTIC_RUN_ID").has_value())) {
    other = Said("RANK");
  } else if (started.has_value() && started->several_here) {
    other = Said(started->variable.c_str());
  }
  if (!other.empty()) {
    return FieldError(
        "nodes",
        absl::StrCat("is ", settings.nodes, ", for one trainer a host, but ",
                     other,
                     ": a launcher has started one for each rank; leave out "
                     "nodes, or start one a host"));
  }
  if (settings.nodes == 1) {
    if (settings.node_rank.value_or(0) != 0) {
      return FieldError(
          "node_rank",
          absl::StrCat("must be 0 if nodes is 1, is ", *settings.node_rank));
    }
    return PlaceAlone(request);
  }
  if (!settings.node_rank.has_value()) {
    return FieldError(
        "node_rank",
        absl::StrCat("isn't set, but nodes is ", settings.nodes,
                     ": give each host its own, --node_rank=0 to the first"));
  }
  if (*settings.node_rank < 0 || *settings.node_rank >= settings.nodes) {
    return FieldError("node_rank",
                      absl::StrCat("must be from 0 to ", settings.nodes - 1,
                                   ", is ", *settings.node_rank));
  }
  if (settings.rendezvous.empty()) {
    return FieldError(
        "rendezvous",
        absl::StrCat("isn't set, but nodes is ", settings.nodes,
                     ": give all hosts the first one's address and a free port "
                     "there, --rendezvous=HOST:PORT"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const int ranks, RanksHere(request));
  Place place = NodePlace(*settings.node_rank, settings.nodes, ranks);
  place.info.placed_by = "launch.nodes";
  place.info.run_key = RunKey(absl::StrCat("nodes-", settings.rendezvous));
  return place;
}

MaybePlace FromKubeflow(const PlaceRequest& request) {
  const bool has_nodes = Variable("PET_NNODES").has_value();
  if (!has_nodes && !Variable("PET_NODE_RANK").has_value()) {
    return absl::optional<Place>();
  }
  const VariableSet set(
      Said(has_nodes ? "PET_NNODES" : "PET_NODE_RANK"),
      "the job must set PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and "
      "PET_MASTER_PORT; one with an elasticPolicy needs torchrun, which "
      "numbers its nodes");
  CAPSTAN_ASSIGN_OR_RETURN(const int nodes, KubeflowNodes(set));
  CAPSTAN_ASSIGN_OR_RETURN(absl::optional<int> node_rank,
                           IntVariable("PET_NODE_RANK", 0, nodes));
  if (!node_rank.has_value() && nodes > 1) return set.Missing("PET_NODE_RANK");
  CAPSTAN_ASSIGN_OR_RETURN(const int ranks, KubeflowRanks(request));
  Place place = NodePlace(node_rank.value_or(0), nodes, ranks);
  RankInfo& info = place.info;
  // PyTorchJob sets both kinds of variables, Trainer v2 only PET_*.
  info.placed_by =
      Variable("WORLD_SIZE").has_value() ? "PyTorchJob" : "Kubeflow Trainer";
  if (nodes == 1) return absl::optional<Place>(std::move(place));
  const bool pet_address = Variable("PET_MASTER_ADDR").has_value();
  const bool pet_port = Variable("PET_MASTER_PORT").has_value();
  if (request.settings.rendezvous.empty()) {
    if (!pet_address && !Variable("MASTER_ADDR").has_value()) {
      return set.Missing("PET_MASTER_ADDR");
    }
    if (!pet_port && !Variable("MASTER_PORT").has_value()) {
      return set.Missing("PET_MASTER_PORT");
    }
  }
  info.master_addr =
      Variable(pet_address ? "PET_MASTER_ADDR" : "MASTER_ADDR").value_or("");
  CAPSTAN_ASSIGN_OR_RETURN(
      const absl::optional<int> port,
      IntVariable(pet_port ? "PET_MASTER_PORT" : "MASTER_PORT", 1, 65536));
  info.master_port = port.value_or(0);
  // Without the address, which the first pod may know as localhost.
  info.run_key = RunKey(absl::StrCat("kubeflow-", info.master_port));
  return absl::optional<Place>(std::move(place));
}

MaybePlace FromSkyPilot(const PlaceRequest& request) {
  const absl::optional<std::string> text = Variable("SKYPILOT_NODE_IPS");
  const bool has_rank = Variable("SKYPILOT_NODE_RANK").has_value();
  if (!text.has_value() && !has_rank) return absl::optional<Place>();
  const VariableSet set(
      has_rank ? Said("SKYPILOT_NODE_RANK") : "SKYPILOT_NODE_IPS is set",
      "SkyPilot sets both for a task's `run`; unset both to train on this host "
      "alone");
  CAPSTAN_ASSIGN_OR_RETURN(const std::string ips,
                           set.Text("SKYPILOT_NODE_IPS"));
  const std::vector<std::string> hosts =
      absl::StrSplit(ips, absl::ByAnyChar(" \n\r\t"), absl::SkipEmpty());
  const int nodes = static_cast<int>(hosts.size());
  if (nodes == 0) return set.Missing("SKYPILOT_NODE_IPS");
  // Older versions don't set it.
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> said,
                           IntVariable("SKYPILOT_NUM_NODES", 1));
  if (said.value_or(nodes) != nodes) {
    return VariableError(
        "SKYPILOT_NUM_NODES",
        absl::StrCat("is ", *said, ", but SKYPILOT_NODE_IPS lists ", nodes,
                     " hosts: set them to agree, or unset SKYPILOT_NUM_NODES"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const int node_rank,
                           set.Int("SKYPILOT_NODE_RANK", 0, nodes));
  CAPSTAN_ASSIGN_OR_RETURN(const int ranks,
                           RanksByGpus(request, "SKYPILOT_NUM_GPUS_PER_NODE"));
  Place place = NodePlace(node_rank, nodes, ranks);
  place.info.placed_by = "SkyPilot";
  if (nodes > 1) CAPSTAN_RETURN_IF_ERROR(TakeHost(hosts[0], &place.info));
  // The same in each try to recover a managed job, but the hosts aren't.
  place.info.run_key = RunKey(
      absl::StrCat("skypilot-", Variable("SKYPILOT_TASK_ID").value_or("task"),
                   "-", hosts[0]));
  return absl::optional<Place>(std::move(place));
}

MaybePlace FromDstack(const PlaceRequest& request) {
  const bool has_nodes = Variable("DSTACK_NODES_NUM").has_value();
  if (!has_nodes && !Variable("DSTACK_NODE_RANK").has_value()) {
    return absl::optional<Place>();
  }
  const VariableSet set(
      Said(has_nodes ? "DSTACK_NODES_NUM" : "DSTACK_NODE_RANK"),
      "dstack sets DSTACK_NODES_NUM, DSTACK_NODE_RANK and "
      "DSTACK_MASTER_NODE_IP; unset them all to train on this host alone");
  CAPSTAN_ASSIGN_OR_RETURN(const int nodes,
                           set.Int("DSTACK_NODES_NUM", 1, kMostNodes + 1));
  CAPSTAN_ASSIGN_OR_RETURN(const int node_rank,
                           set.Int("DSTACK_NODE_RANK", 0, nodes));
  CAPSTAN_ASSIGN_OR_RETURN(const int ranks,
                           RanksByGpus(request, "DSTACK_GPUS_PER_NODE"));
  Place place = NodePlace(node_rank, nodes, ranks);
  place.info.placed_by = "dstack";
  if (nodes > 1) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string host,
                             set.Text("DSTACK_MASTER_NODE_IP"));
    CAPSTAN_RETURN_IF_ERROR(TakeHost(host, &place.info));
  }
  // A retried run has the same id, on other hosts.
  place.info.run_key = RunKey(
      absl::StrCat("dstack-",
                   Variable("DSTACK_RUN_ID")
                       .value_or(Variable("DSTACK_RUN_NAME").value_or("run")),
                   "-", place.info.master_addr));
  return absl::optional<Place>(std::move(place));
}

}  // namespace capstan
