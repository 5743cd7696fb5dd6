// SPDX-License-Identifier: Apache-2.0
#include "trainer/launcher/place.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdint>
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
#include "trainer/launcher/environment.h"
#include "trainer/launcher/place_sources.h"

namespace capstan {
namespace {

constexpr char kInsideRank[] = "CAPSTAN_INSIDE_RANK";

absl::Status CheckNccl(const NcclSettings& nccl) {
  // NCCL counts a buffer's bytes in an int, and has 64 channels.
  constexpr int64_t kMostBufferMib = 1024;
  constexpr int kMostCtas = 64;
  // A year: LibTorch counts in nanoseconds of 64 bits.
  constexpr double kMostSeconds = 365.0 * 24 * 3600;
  if (!(nccl.timeout_seconds >= 0 && nccl.timeout_seconds <= kMostSeconds)) {
    return FieldError("nccl.timeout_seconds",
                      absl::StrCat("must be from 0 (no limit) to a year of "
                                   "seconds, is ",
                                   nccl.timeout_seconds));
  }
  if (nccl.buffer_mib < 0 || nccl.buffer_mib > kMostBufferMib) {
    return FieldError("nccl.buffer_mib",
                      absl::StrCat("must be from 1 to ", kMostBufferMib,
                                   ", is ", nccl.buffer_mib));
  }
  for (const auto& [field, ctas] :
       {std::make_pair("nccl.min_ctas", nccl.min_ctas),
        std::make_pair("nccl.max_ctas", nccl.max_ctas)}) {
    if (ctas < 0 || ctas > kMostCtas) {
      return FieldError(
          field, absl::StrCat("must be from 1 to ", kMostCtas, ", is ", ctas));
    }
  }
  if (nccl.max_ctas > 0 && nccl.min_ctas > nccl.max_ctas) {
    return FieldError(
        "nccl.min_ctas",
        absl::StrCat("is ", nccl.min_ctas, ", more than max_ctas, which is ",
                     nccl.max_ctas));
  }
  return absl::OkStatus();
}

// The fields that must be right whoever places.
absl::Status CheckSettings(const PlaceRequest& request) {
  const LaunchSettings& settings = request.settings;
  if (settings.processes < 0) {
    return FieldError("processes",
                      absl::StrCat("must be AUTO or greater than 0, is ",
                                   settings.processes));
  }
  if (settings.processes > kMostRanksOfANode) {
    return FieldError("processes",
                      absl::StrCat("must be at most ", kMostRanksOfANode,
                                   ", is ", settings.processes));
  }
  if (settings.nodes < 0 || settings.nodes > kMostNodes) {
    return FieldError("nodes", absl::StrCat("must be from 1 to ", kMostNodes,
                                            ", is ", settings.nodes));
  }
  if (settings.max_restarts < 0) {
    return FieldError("max_restarts", absl::StrCat("must not be negative, is ",
                                                   settings.max_restarts));
  }
  if (settings.min_processes < 0) {
    return FieldError("min_processes", absl::StrCat("must not be negative, is ",
                                                    settings.min_processes));
  }
  if (!(settings.return_seconds >= 0)) {
    return FieldError(
        "return_seconds",
        absl::StrCat("must not be negative, is ", settings.return_seconds));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckNccl(settings.nccl));
  if (settings.min_processes > 0 && settings.max_restarts == 0) {
    return FieldError("min_processes",
                      "has no effect without max_restarts: set it, too");
  }
  if (settings.nodes == 0 && settings.node_rank.has_value()) {
    return FieldError("node_rank", absl::StrCat("is ", *settings.node_rank,
                                                ", but nodes isn't set: how "
                                                "many hosts are there?"));
  }
  if (!settings.rendezvous.empty() &&
      !ParseHostPort(settings.rendezvous).has_value()) {
    return FieldError("rendezvous", absl::StrCat("must be HOST:PORT, is \"",
                                                 settings.rendezvous, "\""));
  }
  return absl::OkStatus();
}

absl::Status CheckGpuIds(const PlaceRequest& request) {
  const std::vector<int>& ids = request.settings.gpu_ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= request.gpus) {
      return FieldError(
          "gpu_ids",
          absl::StrCat("names GPU ", ids[i], ", but this machine has ",
                       request.gpus == 0
                           ? std::string("none that can be used")
                           : absl::StrCat("GPUs 0 to ", request.gpus - 1)));
    }
    if (std::find(ids.begin(), ids.begin() + i, ids[i]) != ids.begin() + i) {
      return FieldError(
          "gpu_ids",
          absl::StrCat("names GPU ", ids[i], " twice: at most one rank a GPU"));
    }
  }
  return absl::OkStatus();
}

// Whether the launcher shows each of a host's ranks one GPU, its own: srun
// --gpus-per-task=1. By a variable, or by a control group, in which a GPU that
// isn't the rank's just isn't there: Slurm's own variables, or /proc, which
// shows them all, say so then. torchrun shows all ranks the same ones.
bool EachSeesItsOwn(const PlaceRequest& request, const RankInfo& info) {
  return request.gpus == 1 && info.local_world_size > 1 &&
         !Variable("TORCHELASTIC_RUN_ID").has_value() &&
         (Variable("CUDA_VISIBLE_DEVICES").has_value() ||
          Variable("SLURM_GPUS_PER_TASK").has_value() ||
          absl::StrContains(Variable("SLURM_TRES_PER_TASK").value_or(""),
                            "gres/gpu") ||
          request.gpus_on_machine >= info.local_world_size);
}

// Which GPU is whose.
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

// Rule by rule, as place.h lists them.
absl::StatusOr<Place> ByTheFirst(const PlaceRequest& request) {
  if (request.settings.nodes > 0) return FromSettings(request);
  if (Variable(kInsideRank).has_value()) return PlaceAlone(request);
  for (const auto source :
       {FromTorchrun, FromKubeflow, FromRankVariables, FromOpenMpi, FromMpich,
        FromSlurm, FromSkyPilot, FromDstack}) {
    CAPSTAN_ASSIGN_OR_RETURN(absl::optional<Place> place, source(request));
    if (place.has_value()) return *std::move(place);
  }
  // It numbers processes without a word on how many there are.
  if (Variable("PMIX_RANK").has_value() &&
      Variable("PRTE_LAUNCHED").has_value()) {
    return VariableError(
        "PMIX_RANK",
        "is set, but OMPI_COMM_WORLD_SIZE is not: prterun doesn't say how many "
        "ranks there are; use mpirun, or prterun --personality ompi");
  }
  CAPSTAN_ASSIGN_OR_RETURN(Place place, PlaceAlone(request));
  place.may_train = CheckBatchScript(request.settings);
  return place;
}

}  // namespace

absl::StatusOr<Place> FindPlace(const LaunchSettings& settings, int gpus,
                                int gpus_on_machine) {
  const PlaceRequest request = {settings, gpus, gpus_on_machine};
  CAPSTAN_RETURN_IF_ERROR(CheckSettings(request));
  CAPSTAN_RETURN_IF_ERROR(CheckGpuIds(request));
  CAPSTAN_ASSIGN_OR_RETURN(Place place, ByTheFirst(request));
  RankInfo& info = place.info;
  if (!settings.rendezvous.empty()) {
    if (place.Alone() && settings.nodes == 0 && info.placed_by.empty()) {
      return FieldError(
          "rendezvous",
          absl::StrCat("is \"", settings.rendezvous,
                       "\", but neither nodes nor a launcher's environment "
                       "says that there are other hosts: set nodes, too"));
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

absl::Status TakeMasterVariables(RankInfo* info) {
  const absl::optional<std::string> address = Variable("MASTER_ADDR");
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> port,
                           IntVariable("MASTER_PORT", 1, 65536));
  // An address alone may be a cluster's default for everyone.
  if (address.has_value() && (port.has_value() || info->master_addr.empty())) {
    info->master_addr = *address;
  }
  if (port.has_value()) info->master_port = *port;
  return absl::OkStatus();
}

absl::optional<HostPort> ParseHostPort(absl::string_view text) {
  HostPort parsed;
  absl::string_view port;
  bool has_port = false;
  const size_t colon = text.rfind(':');
  if (absl::StartsWith(text, "[")) {
    const size_t close = text.find(']');
    if (close == absl::string_view::npos) return absl::nullopt;
    parsed.host = std::string(text.substr(1, close - 1));
    port = text.substr(close + 1);
    has_port = absl::ConsumePrefix(&port, ":");
    if (!has_port && !port.empty()) return absl::nullopt;
  } else if (colon != absl::string_view::npos && text.find(':') == colon) {
    parsed.host = std::string(text.substr(0, colon));
    port = text.substr(colon + 1);
    has_port = true;
  } else {
    // No port; several colons are an IPv6 address.
    parsed.host = std::string(text);
  }
  if (parsed.host.empty() ||
      std::any_of(parsed.host.begin(), parsed.host.end(),
                  [](char c) { return absl::ascii_isspace(c) || c == '/'; })) {
    return absl::nullopt;
  }
  if (has_port && (!absl::SimpleAtoi(port, &parsed.port) || parsed.port < 1 ||
                   parsed.port > 65535)) {
    return absl::nullopt;
  }
  return parsed;
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

bool IsLoopback(absl::string_view address) {
  return address == "localhost" || address == "::1" ||
         absl::StartsWith(address, "127.");
}

}  // namespace capstan
