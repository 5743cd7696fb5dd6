// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/place.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cluster/launch/environment.h"
#include "cluster/launch/launchers.h"
#include "cluster/launch/pmi1.h"

namespace capstan {
namespace {

constexpr char kInsideRank[] = "CAPSTAN_INSIDE_RANK";
constexpr char kTokenKey[] = "capstan_token";

struct Check {
  bool wrong;
  const char* field;
  std::string problem;
};

absl::Status FirstWrong(std::initializer_list<Check> checks) {
  for (const Check& check : checks) {
    if (check.wrong) return FieldError(check.field, check.problem);
  }
  return absl::OkStatus();
}

// "HOST:PORT", "HOST" or "[V6]:PORT".
struct HostPort {
  std::string host;
  int port = kDefaultPort;
};

absl::optional<HostPort> ParseHostPort(absl::string_view text) {
  HostPort parsed;
  const size_t end = absl::StartsWith(text, "[") ? text.find(']') : 0;
  if (end == absl::string_view::npos) return absl::nullopt;
  // Several colons without brackets are an IPv6 address.
  const size_t colon = text.find(':', end);
  const bool has_port =
      colon != absl::string_view::npos && (end > 0 || text.rfind(':') == colon);
  absl::string_view host = text.substr(0, has_port ? colon : text.size());
  if (end > 0 && (host.size() != end + 1 || !absl::ConsumePrefix(&host, "[") ||
                  !absl::ConsumeSuffix(&host, "]"))) {
    return absl::nullopt;
  }
  if (host.empty() || std::any_of(host.begin(), host.end(), [](char c) {
        return absl::ascii_isspace(c) || c == '/';
      })) {
    return absl::nullopt;
  }
  parsed.host = std::string(host);
  if (has_port && (!absl::SimpleAtoi(text.substr(colon + 1), &parsed.port) ||
                   parsed.port < 1 || parsed.port > 65535)) {
    return absl::nullopt;
  }
  return parsed;
}

// Checks the fields that must be valid under every launcher.
absl::Status CheckSettings(const LaunchSettings& settings) {
  const NcclSettings& nccl = settings.nccl;
  // NCCL counts a buffer's bytes in an int, and has 64 channels.
  constexpr int kMostBufferMib = 1024;
  constexpr int kMostCtas = 64;
  // A year: LibTorch counts in nanoseconds of 64 bits.
  constexpr double kMostSeconds = 365.0 * 24 * 3600;
  const auto outside = [](int64_t value, int64_t most) {
    return value < 0 || value > most;
  };
  const auto ctas = [&](const char* field, int value) {
    return Check{outside(value, kMostCtas), field,
                 absl::StrCat("must be from 0 (NCCL's own) to ", kMostCtas,
                              ", is ", value)};
  };
  const auto not_negative = [](const char* field, auto value) {
    return Check{!(value >= 0), field,
                 absl::StrCat("must not be negative, is ", value)};
  };
  return FirstWrong({
      {settings.processes < 0, "processes",
       absl::StrCat("must be AUTO or greater than 0, is ", settings.processes)},
      {settings.processes > kMostRanksOfANode, "processes",
       absl::StrCat("must be at most ", kMostRanksOfANode, ", is ",
                    settings.processes)},
      {outside(settings.nodes, kMostNodes), "nodes",
       absl::StrCat("must be from 0 (not set) to ", kMostNodes, ", is ",
                    settings.nodes)},
      not_negative("max_restarts", settings.max_restarts),
      not_negative("min_processes", settings.min_processes),
      not_negative("max_processes", settings.max_processes),
      not_negative("return_seconds", settings.return_seconds),
      {!(nccl.timeout_seconds >= 0 && nccl.timeout_seconds <= kMostSeconds),
       "nccl.timeout_seconds",
       absl::StrCat("must be from 0 (no limit) to a year of seconds, is ",
                    nccl.timeout_seconds)},
      {outside(nccl.buffer_mib, kMostBufferMib), "nccl.buffer_mib",
       absl::StrCat("must be from 0 (NCCL's own) to ", kMostBufferMib, ", is ",
                    nccl.buffer_mib)},
      ctas("nccl.min_ctas", nccl.min_ctas),
      ctas("nccl.max_ctas", nccl.max_ctas),
      {nccl.max_ctas > 0 && nccl.min_ctas > nccl.max_ctas, "nccl.min_ctas",
       absl::StrCat("is ", nccl.min_ctas, ", more than max_ctas, which is ",
                    nccl.max_ctas)},
      {settings.min_processes > 0 && settings.max_restarts == 0,
       "min_processes", "has no effect without max_restarts: set it, too"},
      {settings.max_processes > 0 && settings.max_restarts == 0,
       "max_processes", "has no effect without max_restarts: set it, too"},
      {settings.max_processes > 0 &&
           settings.min_processes > settings.max_processes,
       "max_processes",
       absl::StrCat("is ", settings.max_processes,
                    ", less than min_processes, which is ",
                    settings.min_processes)},
      {settings.nodes == 0 && settings.node_rank.has_value(), "node_rank",
       absl::StrCat("is ", settings.node_rank.value_or(0),
                    ", but nodes isn't set: how many hosts are there?")},
      {!settings.rendezvous.empty() &&
           !ParseHostPort(settings.rendezvous).has_value(),
       "rendezvous",
       absl::StrCat("must be HOST:PORT, is \"", settings.rendezvous, "\"")},
  });
}

absl::Status CheckGpuIds(const PlaceRequest& request) {
  const std::vector<int>& ids = request.settings.gpu_ids;
  const std::string here = request.gpus == 0
                               ? "none that can be used"
                               : absl::StrCat("GPUs 0 to ", request.gpus - 1);
  for (auto id = ids.begin(); id != ids.end(); ++id) {
    CAPSTAN_RETURN_IF_ERROR(FirstWrong(
        {{*id < 0 || *id >= request.gpus, "gpu_ids",
          absl::StrCat("names GPU ", *id, ", but this machine has ", here)},
         {std::find(ids.begin(), id, *id) != id, "gpu_ids",
          absl::StrCat("names GPU ", *id, " twice: at most one rank a GPU")}}));
  }
  return absl::OkStatus();
}

// Whether the launcher shows each of a host's ranks only its own GPU, like srun
// --gpus-per-task=1: by a variable, or by a control group that hides the
// others, which Slurm's variables or /proc, which lists all GPUs, reveal.
// torchrun shows the same GPUs to all ranks.
bool EachSeesItsOwn(const PlaceRequest& request, const RankInfo& info) {
  return request.gpus == 1 && info.local_world_size > 1 &&
         !IsSet("TORCHELASTIC_RUN_ID") &&
         (IsSet("CUDA_VISIBLE_DEVICES") || IsSet("SLURM_GPUS_PER_TASK") ||
          absl::StrContains(Variable("SLURM_TRES_PER_TASK").value_or(""),
                            "gres/gpu") ||
          request.gpus_on_machine >= info.local_world_size);
}

// Assigns the GPUs to the local ranks.
absl::Status AssignGpus(const PlaceRequest& request, Place* place) {
  const std::vector<int>& ids = request.settings.gpu_ids;
  RankInfo& info = place->info;
  if (!ids.empty() && info.local_world_size > static_cast<int>(ids.size())) {
    return FieldError(
        "gpu_ids",
        absl::StrCat("names ", ids.size(), " for the ", info.local_world_size,
                     " ranks of this host: one for each is needed"));
  }
  if (place->forks) {
    place->gpu_ids = ids;
  } else if (!ids.empty()) {
    info.gpu = ids[info.local_rank];
  } else if (EachSeesItsOwn(request, info)) {
    info.gpu = 0;
  }
  return absl::OkStatus();
}

// It goes through lines of text and files.
absl::StatusOr<std::string> TokenOr(std::string token) {
  constexpr char kToken[] = "CAPSTAN_RUN_TOKEN";
  constexpr size_t kMost = 256;
  absl::optional<std::string> set = Variable(kToken);
  if (!set.has_value()) return token;
  if (set->size() > kMost || !std::all_of(set->begin(), set->end(), [](char c) {
        return absl::ascii_isgraph(c);
      })) {
    return VariableError(kToken, absl::StrCat("must have at most ", kMost,
                                              " characters and no spaces"));
  }
  return *std::move(set);
}

// An error if a launcher has started this process as one of several ranks of
// its host, although `field` says that there is one of us a host.
absl::Status CheckOneAHost(const char* field, int value) {
  const StartedTasks started = TasksOfLaunchers().value_or(StartedTasks());
  const bool rank =
      IsSet("RANK") && (IsSet("LOCAL_RANK") || IsSet("TORCHELASTIC_RUN_ID"));
  const char* const other = rank ? "RANK" : started.variable;
  return FirstWrong(
      {{rank || started.several_here, field,
        absl::StrCat("is ", value, ", for one trainer a host, but ", other,
                     " is ", Variable(other).value_or(""),
                     ": a launcher has started one for each rank; leave out ",
                     field, ", or start one a host")}});
}

// launch { nodes }, which must be set: one of us a host.
absl::StatusOr<Place> FromSettings(const PlaceRequest& request) {
  const LaunchSettings& settings = request.settings;
  const int nodes = settings.nodes;
  const int node_rank = settings.node_rank.value_or(0);
  CAPSTAN_RETURN_IF_ERROR(CheckOneAHost("nodes", nodes));
  CAPSTAN_RETURN_IF_ERROR(
      FirstWrong({{nodes == 1 && node_rank != 0, "node_rank",
                   absl::StrCat("must be 0 if nodes is 1, is ", node_rank)}}));
  if (nodes == 1) return PlaceAlone(request);
  CAPSTAN_RETURN_IF_ERROR(FirstWrong(
      {{!settings.node_rank.has_value(), "node_rank",
        absl::StrCat("isn't set, but nodes is ", nodes,
                     ": give each host its own, --node_rank=0 to the first")},
       {node_rank < 0 || node_rank >= nodes, "node_rank",
        absl::StrCat("must be from 0 to ", nodes - 1, ", is ", node_rank)},
       {settings.rendezvous.empty(), "rendezvous",
        absl::StrCat("isn't set, but nodes is ", nodes,
                     ": give all hosts the first one's address and a free port "
                     "there, --rendezvous=HOST:PORT")}}));
  CAPSTAN_ASSIGN_OR_RETURN(const int ranks, RanksHere(request));
  Place place = NodePlace(node_rank, nodes, ranks);
  place.info.placed_by = "launch.nodes";
  place.info.run_key = RunKey(absl::StrCat("nodes-", settings.rendezvous));
  return place;
}

// launch { rendezvous max_processes }, which must be set.
absl::StatusOr<Place> OneOfChanging(const PlaceRequest& request) {
  const LaunchSettings& settings = request.settings;
  CAPSTAN_RETURN_IF_ERROR(
      CheckOneAHost("max_processes", settings.max_processes));
  return PlaceAlone(request);
}

// launch { max_processes }: hosts come and go. `place` is what settings and
// launcher say of this host.
absl::Status MakeChanging(const PlaceRequest& request, Place* place) {
  const LaunchSettings& settings = request.settings;
  RankInfo& info = place->info;
  const int ranks = info.local_world_size;
  CAPSTAN_RETURN_IF_ERROR(FirstWrong({
      {!place->forks, "max_processes",
       "is for launchers that start one process a host; this one has started "
       "one for each rank, and decides itself which hosts there are"},
      {settings.rendezvous.empty() &&
           (info.nodes == 1 || info.agent_store || info.master_addr.empty() ||
            info.master_port == 0),
       "rendezvous",
       "isn't set, but max_processes is: give all hosts the first one's "
       "address and a free port there, --rendezvous=HOST:PORT"},
      {settings.max_processes < ranks, "max_processes",
       absl::StrCat("is ", settings.max_processes, ", but this host has ",
                    ranks, ranks == 1 ? " rank" : " ranks")},
  }));
  place->changes = true;
  place->first_hosts = info.nodes > 1 ? info.nodes : settings.nodes;
  info.nodes = settings.max_processes / ranks;
  info.world_size = info.nodes * ranks;
  info.node_rank = 0;
  if (info.placed_by.empty()) info.placed_by = "launch.max_processes";
  if (info.run_key.empty()) {
    info.run_key = RunKey(absl::StrCat("hosts-", settings.rendezvous));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Place> FindPlace(const LaunchSettings& settings, int gpus,
                                int gpus_on_machine) {
  const PlaceRequest request = {settings, gpus, gpus_on_machine};
  CAPSTAN_RETURN_IF_ERROR(CheckSettings(settings));
  CAPSTAN_RETURN_IF_ERROR(CheckGpuIds(request));
  // Hosts that come and go have no numbers.
  const bool changing =
      settings.max_processes > 0 && !settings.rendezvous.empty();
  CAPSTAN_ASSIGN_OR_RETURN(Place place,
                           changing             ? OneOfChanging(request)
                           : settings.nodes > 0 ? FromSettings(request)
                           : IsSet(kInsideRank) ? PlaceAlone(request)
                                                : FromEnvironment(request));
  RankInfo& info = place.info;
  if (settings.max_processes > 0) {
    CAPSTAN_RETURN_IF_ERROR(MakeChanging(request, &place));
  }
  if (!settings.rendezvous.empty()) {
    if (place.Alone() && settings.nodes == 0 && info.placed_by.empty()) {
      return FieldError(
          "rendezvous",
          absl::StrCat(
              "is \"", settings.rendezvous,
              "\", but neither nodes nor a launcher's environment says "
              "that there are other hosts: set nodes, too"));
    }
    const HostPort meet = *ParseHostPort(settings.rendezvous);
    info.master_addr = meet.host;
    info.master_port = meet.port;
    info.agent_store = false;
  }
  info.interface = settings.interface;
  info.own_process = !place.forks;
  if (place.forks) place.max_restarts = settings.max_restarts;
  if (settings.min_processes > info.world_size) {
    return FieldError("min_processes",
                      absl::StrCat("is ", settings.min_processes,
                                   ", but the run has only ", info.world_size,
                                   info.world_size == 1 ? " rank" : " ranks"));
  }
  info.nccl = settings.nccl;
  info.min_processes = settings.min_processes;
  if (settings.return_seconds > 0)
    info.return_seconds = settings.return_seconds;
  CAPSTAN_ASSIGN_OR_RETURN(info.token, TokenOr(info.token));
  CAPSTAN_RETURN_IF_ERROR(AssignGpus(request, &place));
  return place;
}

std::string PlaceText(const RankInfo& info) {
  if (info.placed_by.empty()) return "";
  std::string text = info.placed_by;
  // "SLURM: job 7, node ..", "torchrun: node .."
  absl::StrAppend(&text, absl::StrContains(text, ": ") ? ", " : ": ");
  if (info.node_rank >= 0) {
    absl::StrAppend(&text, "node ", info.node_rank, " of ", info.nodes, ", ");
  }
  absl::StrAppend(&text, "rank ", info.rank, " of ", info.world_size);
  return text;
}

absl::Status AskLauncher(Place* place, int seconds) {
  if (place->pmi_fd < 0) return absl::OkStatus();
  RankInfo& info = place->info;
  Pmi1 pmi(place->pmi_fd,
           std::chrono::steady_clock::now() + std::chrono::seconds(seconds));
  CAPSTAN_RETURN_IF_ERROR(pmi.Init());
  CAPSTAN_ASSIGN_OR_RETURN(const std::string space, pmi.Space());
  info.run_key = RunKey(absl::StrCat(info.run_key, "-", space));
  if (info.rank == 0) {
    if (info.token.empty()) info.token = RandomToken();
    CAPSTAN_RETURN_IF_ERROR(pmi.Put(kTokenKey, info.token));
  }
  CAPSTAN_RETURN_IF_ERROR(pmi.Barrier());
  if (info.rank != 0) {
    CAPSTAN_ASSIGN_OR_RETURN(info.token, pmi.Get(kTokenKey));
  }
  const absl::StatusOr<std::string> mapping = pmi.Get("PMI_process_mapping");
  if (!mapping.ok() && !absl::IsNotFound(mapping.status())) {
    return mapping.status();
  }
  const auto hosts = HostsOfRanks(mapping.value_or(""), info.world_size);
  // Not needed to meet.
  if (hosts.ok() && info.nodes > 1) {
    const std::set<int> different(hosts->begin(), hosts->end());
    const auto own = different.find((*hosts)[info.rank]);
    if (different.size() > 1) {
      info.nodes = static_cast<int>(different.size());
      info.node_rank = static_cast<int>(std::distance(different.begin(), own));
    }
  }
  return pmi.Finalize();
}

void MarkInsideRank() { setenv(kInsideRank, "1", /*replace=*/1); }

absl::StatusOr<int> RanksHere(const PlaceRequest& request) {
  const LaunchSettings& settings = request.settings;
  const int ids = static_cast<int>(settings.gpu_ids.size());
  if (settings.processes == 0) {
    if (ids > 0) return ids;
    return request.gpus > 0 ? request.gpus : kCpuProcesses;
  }
  if (request.gpus > 0 && settings.processes > request.gpus) {
    return FieldError(
        "processes",
        absl::StrCat("is ", settings.processes, ", but this machine has ",
                     request.gpus, ": at most one rank a GPU"));
  }
  return settings.processes;
}

Place NodePlace(int node_rank, int nodes, int ranks) {
  Place place;
  place.info.node_rank = node_rank;
  place.info.nodes = nodes;
  place.info.local_world_size = ranks;
  place.info.world_size = nodes * ranks;
  return place;
}

absl::StatusOr<Place> PlaceAlone(const PlaceRequest& request) {
  CAPSTAN_ASSIGN_OR_RETURN(const int ranks, RanksHere(request));
  return NodePlace(/*node_rank=*/0, /*nodes=*/1, ranks);
}

std::string RunKey(absl::string_view text) {
  constexpr size_t kMost = 80;
  std::string key(text.substr(0, kMost));
  for (char& c : key) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '.' && c != '_') c = '_';
  }
  if (key == text) return key;
  // FNV-1a: what was cut off or replaced still counts, the same on all hosts.
  uint64_t hash = 14695981039346656037u;
  for (char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return absl::StrCat(key, "-", absl::Hex(hash, absl::kZeroPad16));
}

}  // namespace capstan
