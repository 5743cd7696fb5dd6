// SPDX-License-Identifier: Apache-2.0
//
// For place.cc: one function for each launcher, which reads its variables.
#ifndef CAPSTAN_TRAINER_LAUNCHER_PLACE_SOURCES_H_
#define CAPSTAN_TRAINER_LAUNCHER_PLACE_SOURCES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "trainer/launcher/place.h"

namespace capstan {

// So that their product is an int.
constexpr int kMostNodes = 65536;
constexpr int kMostRanksOfANode = 10000;

// What all of them get.
struct PlaceRequest {
  const LaunchSettings& settings;
  int gpus = 0;
  int gpus_on_machine = 0;
};

using MaybePlace = absl::StatusOr<absl::optional<Place>>;

// Each: nullopt if the launcher isn't there.
MaybePlace FromTorchrun(const PlaceRequest& request);
MaybePlace FromKubeflow(const PlaceRequest& request);
MaybePlace FromRankVariables(const PlaceRequest& request);
MaybePlace FromOpenMpi(const PlaceRequest& request);
MaybePlace FromMpich(const PlaceRequest& request);
MaybePlace FromSlurm(const PlaceRequest& request);
MaybePlace FromSkyPilot(const PlaceRequest& request);
MaybePlace FromDstack(const PlaceRequest& request);

// launch { nodes }, which must be set.
absl::StatusOr<Place> FromSettings(const PlaceRequest& request);
// Our launcher's ranks, on this host only.
absl::StatusOr<Place> PlaceAlone(const PlaceRequest& request);

// INVALID_ARGUMENT if this is a batch script whose tasks srun should start.
absl::Status CheckBatchScript(const LaunchSettings& settings);

// Processes that mpirun, else srun has started together with this one.
struct StartedTasks {
  std::string variable;  // that says so, for messages
  int tasks = 0;         // on all hosts, more than 1
  bool several_here = false;
};
// nullopt: none. What isn't a number counts as not set.
absl::optional<StartedTasks> TasksOfLaunchers();

// Ranks that our launcher would fork here: launch.processes, or one for each
// GPU, or two. A FieldError if it's more than there are GPUs.
absl::StatusOr<int> RanksHere(const PlaceRequest& request);

// A host of `ranks` ranks, which our launcher forks.
Place NodePlace(int node_rank, int nodes, int ranks);

// Sets info's address to MASTER_ADDR and MASTER_PORT, if both are set or as far
// as it has none.
absl::Status TakeMasterVariables(RankInfo* info);

// "HOST:PORT", "HOST" or "[V6]:PORT".
struct HostPort {
  std::string host;
  int port = kDefaultPort;
};
absl::optional<HostPort> ParseHostPort(absl::string_view text);

// "torchrun-JOB-n1-29500": characters of file names only, and not too long;
// different for different texts.
std::string RunKey(absl::string_view text);

// Whether `address` is this host seen from itself: localhost, 127.0.0.1, ::1.
bool IsLoopback(absl::string_view address);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_PLACE_SOURCES_H_
