// SPDX-License-Identifier: Apache-2.0
//
// Launchers that set RANK and WORLD_SIZE for each rank: torchrun, Ray Train,
// PyTorchJob without PET_*, and whoever sets them by hand.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/launcher/environment.h"
#include "trainer/launcher/place_sources.h"

namespace capstan {
namespace {

bool IsSet(const char* name) { return Variable(name).has_value(); }

// Whether one of this host's interfaces has the numeric `address`.
bool HasAddress(const std::string& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (one->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET,
                &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr,
                text, sizeof(text));
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(
          AF_INET6,
          &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr,
          text, sizeof(text));
    }
    found |= address == text;
  }
  freeifaddrs(all);
  return found;
}

// Whether `address` names this host, as far as that is known without asking a
// name server.
bool IsThisHost(const std::string& address) {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  const std::string own = name;
  const auto first_label = [](const std::string& text) {
    return text.substr(0, text.find('.'));
  };
  return address == own || address == first_label(own) ||
         first_label(address) == own || HasAddress(address);
}

absl::Status FillRank(RankInfo* info) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> world,
                           IntVariable("WORLD_SIZE", 1));
  if (!world.has_value()) {
    return VariableError(
        "WORLD_SIZE",
        "is not set, but RANK is: set both, or neither to have the trainer "
        "launch its own ranks");
  }
  info->world_size = *world;
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> rank,
                           IntVariable("RANK", 0, *world));
  if (!rank.has_value()) {
    return VariableError(
        "RANK",
        "is not set, but WORLD_SIZE is: set both, or neither to have the "
        "trainer launch its own ranks");
  }
  info->rank = *rank;
  return absl::OkStatus();
}

absl::Status FillMaster(RankInfo* info) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> port,
                           IntVariable("MASTER_PORT", 1, 65536));
  if (info->world_size > 1) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      if (!IsSet(name)) {
        return VariableError(
            name,
            absl::StrCat("is not set, but WORLD_SIZE is ", info->world_size,
                         ": rank 0's address and a free port there are "
                         "needed"));
      }
    }
  }
  info->master_addr = Variable("MASTER_ADDR").value_or(info->master_addr);
  info->master_port = port.value_or(0);
  return absl::OkStatus();
}

// Without a word on which rank is where: all are on one host if rank 0's
// address is a loopback one; otherwise, as in PyTorchJob's pods, each has a
// host to itself. There rank 0 may know itself as "localhost".
absl::Status GuessLocal(RankInfo* info) {
  const bool pod = IsSet("KUBERNETES_SERVICE_HOST");
  const bool one_host =
      info->world_size == 1 ||
      (IsLoopback(info->master_addr) && !(pod && info->rank == 0));
  if (one_host) {
    info->local_rank = info->rank;
    info->local_world_size = info->world_size;
    return absl::OkStatus();
  }
  if (info->rank > 0 && IsThisHost(info->master_addr)) {
    return VariableError(
        "LOCAL_RANK",
        absl::StrCat("is not set, but MASTER_ADDR (", info->master_addr,
                     ") is this host, so that rank 0 runs here beside rank ",
                     info->rank, ": set LOCAL_RANK and LOCAL_WORLD_SIZE"));
  }
  info->local_rank = 0;
  info->local_world_size = 1;
  info->nodes = info->world_size;
  info->node_rank = info->rank;
  return absl::OkStatus();
}

// How many hosts there are, and which this is: torchrun says it.
absl::Status FillNode(RankInfo* info) {
  if (info->local_world_size == info->world_size) {
    // LOCAL_WORLD_SIZE may have been left out.
    if (IsSet("LOCAL_WORLD_SIZE") || IsLoopback(info->master_addr) ||
        info->world_size == 1) {
      return absl::OkStatus();
    }
  }
  // Set by hand, loopback leads nowhere else: LOCAL_WORLD_SIZE has ranks of one
  // host count as hosts. A pod may know itself as localhost, and torchrun says
  // how many hosts there are.
  if (IsLoopback(info->master_addr) && !IsSet("KUBERNETES_SERVICE_HOST") &&
      !IsSet("TORCHELASTIC_RUN_ID")) {
    return absl::OkStatus();
  }
  const int local = info->local_world_size;
  info->nodes = std::max(2, (info->world_size + local - 1) / local);
  info->node_rank = -1;
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> group,
                           IntVariable("GROUP_RANK", 0, info->world_size));
  CAPSTAN_ASSIGN_OR_RETURN(
      const absl::optional<int> groups,
      IntVariable("GROUP_WORLD_SIZE", 1, info->world_size + 1));
  if (group.has_value() && groups.has_value() && *group < *groups) {
    info->node_rank = *group;
    info->nodes = *groups;
  }
  return absl::OkStatus();
}

absl::Status FillLocal(RankInfo* info) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> local_world,
                           IntVariable("LOCAL_WORLD_SIZE", 1));
  if (local_world.has_value() && *local_world > info->world_size) {
    return VariableError(
        "LOCAL_WORLD_SIZE",
        absl::StrCat("must be at most WORLD_SIZE (", info->world_size, "), is ",
                     *local_world));
  }
  info->local_world_size = local_world.value_or(info->world_size);
  CAPSTAN_ASSIGN_OR_RETURN(
      const absl::optional<int> local_rank,
      IntVariable("LOCAL_RANK", 0, info->local_world_size));
  if (!local_rank.has_value()) {
    if (!local_world.has_value()) return GuessLocal(info);
    if (info->local_world_size != info->world_size) {
      return VariableError("LOCAL_RANK",
                           "is not set: with several machines "
                           "(LOCAL_WORLD_SIZE less than WORLD_SIZE) it is "
                           "needed");
    }
  }
  info->local_rank = local_rank.value_or(info->rank);
  return FillNode(info);
}

// What RANK and its companions say; whose they are is left to the caller.
absl::StatusOr<Place> ReadRank() {
  Place place;
  place.forks = false;
  RankInfo& info = place.info;
  CAPSTAN_RETURN_IF_ERROR(FillRank(&info));
  CAPSTAN_RETURN_IF_ERROR(FillMaster(&info));
  CAPSTAN_RETURN_IF_ERROR(FillLocal(&info));
  info.agent_store =
      Variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  CAPSTAN_ASSIGN_OR_RETURN(info.threads, ThreadsPerRank(info.local_world_size));
  return place;
}

// Each task would believe that it's the same rank.
absl::Status CheckTasks(const RankInfo& info) {
  const absl::optional<StartedTasks> started = TasksOfLaunchers();
  if (!started.has_value() || info.world_size >= started->tasks) {
    return absl::OkStatus();
  }
  return VariableError(
      "WORLD_SIZE",
      absl::StrCat("is ", info.world_size, ", but ", started->variable, " is ",
                   started->tasks, ": unset RANK and WORLD_SIZE to have the ",
                   started->tasks, " tasks be the ranks, or start ",
                   info.world_size));
}

// Ray Train's torch backend has joined the workers in Python before ours, so
// that MASTER_PORT is its own store's: rank 0 publishes another port.
bool TakenByRay() {
  return IsSet("NODE_RANK") && IsSet("ACCELERATE_TORCH_DEVICE");
}

}  // namespace

MaybePlace FromTorchrun(const PlaceRequest&) {
  const absl::optional<std::string> run = Variable("TORCHELASTIC_RUN_ID");
  if (!run.has_value() || !IsSet("RANK")) return absl::optional<Place>();
  CAPSTAN_ASSIGN_OR_RETURN(Place place, ReadRank());
  RankInfo& info = place.info;
  // "none" is its default.
  info.placed_by =
      *run == "none" ? "torchrun" : absl::StrCat("torchrun: run ", *run);
  info.run_key = RunKey(absl::StrCat(
      "torchrun-", *run, "-", info.master_addr, "-", info.master_port,
      "-restart-", Variable("TORCHELASTIC_RESTART_COUNT").value_or("0")));
  return absl::optional<Place>(std::move(place));
}

MaybePlace FromRankVariables(const PlaceRequest&) {
  if (!IsSet("RANK") && !IsSet("WORLD_SIZE")) return absl::optional<Place>();
  CAPSTAN_ASSIGN_OR_RETURN(Place place, ReadRank());
  RankInfo& info = place.info;
  CAPSTAN_RETURN_IF_ERROR(CheckTasks(info));
  const std::string address =
      absl::StrCat(info.master_addr, "-", info.master_port);
  if (IsSet("RAY_JOB_ID") || IsSet("RAY_RAYLET_PID")) {
    info.placed_by = "Ray";
    info.run_key = RunKey(absl::StrCat(
        "ray-", Variable("RAY_JOB_ID").value_or(""), "-", address));
    if (TakenByRay() && info.world_size > 1) info.master_port = 0;
  } else {
    info.placed_by =
        IsSet("KUBERNETES_SERVICE_HOST") ? "Kubernetes" : "RANK, WORLD_SIZE";
    // Without the address, which rank 0's host may know as localhost.
    info.run_key = RunKey(absl::StrCat("rank-", info.master_port));
  }
  return absl::optional<Place>(std::move(place));
}

}  // namespace capstan
