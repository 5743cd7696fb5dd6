// SPDX-License-Identifier: Apache-2.0
//
// train and check: both read a config and create all its plugins; train
// continues.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/error_code.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/place.h"
#include "cluster/launch/signals.h"
#include "cluster/members/members.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/schedule.h"
#include "trainer/session/stored_run.h"
#include "trainer/session/train.h"

namespace capstan {
namespace {

void AddFlags(Flags& flags, RunOptions* options) {
  AddRunOptions(flags, options);
  flags.Add("--apply", &options->apply,
            "Write the right line into a config where an error knows it, show "
            "the change, and go on");
  flags
      .Add("--nodes", &options->nodes,
           "Hosts of the run, each of which starts this command; sets "
           "launch.nodes")
      .Positive();
  flags.Add("--node_rank", &options->node_rank,
            "Which of them this is, from 0; sets launch.node_rank");
  flags
      .Add("--rendezvous", &options->rendezvous,
           "Host 0's address and a free port there, the same for all; sets "
           "launch.rendezvous")
      .Type("HOST:PORT");
}

// What `check` tells, for programs.
nlohmann::ordered_json CheckAsJson(const Prepared& prepared) {
  const TrainJob& job = prepared.job;
  const Mesh mesh = MeshOf(job.loaded.config.train(), prepared.processes);
  const int64_t samples = job.parts.train_data->size();
  std::vector<std::string> notes = job.loaded.notes;
  notes.insert(notes.end(), job.notes.begin(), job.notes.end());
  for (const std::string& note : job.parts.train_data->notes()) {
    notes.push_back(note);
  }
  return {{"name", job.loaded.config.name()},
          {"parameters", ParameterCount(*job.parts.model)},
          {"samples", samples},
          {"strategy", job.parts.strategy_name},
          {"precision", job.parts.precision_name},
          {"global_batch_size", job.batch.global_batch_size},
          {"micro_batch_size", job.batch.micro_batch_size},
          {"accumulation", job.batch.accumulation},
          {"ranks", mesh.size()},
          {"sequence_parallel", mesh.sequence},
          {"steps", StepsOfRun(job.loaded.config.train(), EpochRows(job.parts),
                               job.batch.global_batch_size)},
          {"notes", std::move(notes)}};
}

absl::StatusOr<int> Check(const RunOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           Prepare(options));
  if (prepared == nullptr) return 0;
  if (options.json) {
    std::cout << JsonText(CheckAsJson(*prepared), 2) << "\n";
    return 0;
  }
  const TrainJob& job = prepared->job;
  const Mesh mesh = MeshOf(job.loaded.config.train(), prepared->processes);
  std::cout << "OK: " << job.loaded.config.name() << ", "
            << ParameterCount(*job.parts.model) << " parameters, "
            << job.parts.train_data->size() << " training samples, "
            << job.parts.strategy_name << ", " << job.parts.precision_name
            << ", global batch "
            << BatchText(job.batch.global_batch_size,
                         job.batch.micro_batch_size, mesh.size(), mesh.sequence,
                         job.batch.accumulation)
            << ", "
            << StepsOfRun(job.loaded.config.train(), EpochRows(job.parts),
                          job.batch.global_batch_size)
            << " steps\n";
  for (const std::string& note : job.loaded.notes) std::cout << note << "\n";
  for (const std::string& note : job.notes) std::cout << note << "\n";
  for (const std::string& note : job.parts.train_data->notes()) {
    std::cout << note << "\n";
  }
  return 0;
}

// Null if the run has nothing to upload, or another process does it.
absl::StatusOr<std::unique_ptr<StoredRun>> StartUploads(
    const LoadedConfig& loaded, bool first) {
  const absl::optional<Address> address = StoredOutput(loaded);
  if (!address.has_value() || !first) return nullptr;
  return StoredRun::Start(*address, loaded);
}

// The hosts of a run that come and go.
absl::StatusOr<std::unique_ptr<ChangingHosts>> HostsOf(const RunConfig& config,
                                                       const Place& place) {
  const RankInfo& info = place.info;
  // What may differ from host to host.
  RunConfig common = config;
  Launch& launch = *common.mutable_launch();
  launch.clear_processes();
  launch.clear_nodes();
  launch.clear_node_rank();
  launch.clear_rendezvous();
  launch.clear_interface();
  launch.clear_gpu_ids();
  launch.clear_binding();
  MembersOptions options;
  options.host = info.master_addr;
  options.port = info.master_port;
  options.interface = info.interface;
  options.run_key = info.run_key;
  options.token = info.token;
  options.folder = info.meeting_folder;
  options.digest = absl::StrCat(absl::Hex(Crc32c(common.SerializeAsString())));
  options.roster.ranks_per_host = info.local_world_size;
  options.roster.min_ranks =
      std::max(info.min_processes, info.local_world_size);
  options.roster.max_ranks = info.world_size;
  options.roster.multiple =
      std::max<int>(1, config.train().sequence_parallel());
  options.roster.first_hosts = place.first_hosts;
  options.roster.patience = std::chrono::milliseconds(
      static_cast<int64_t>(1e3 * info.return_seconds));
  options.silence = std::min(options.silence, options.roster.patience);
  options.roster.max_restarts = place.max_restarts;
  return JoinHosts(options);
}

// `code` of a run, once all of it is uploaded.
int WithUploads(int code, const std::unique_ptr<StoredRun>& stored) {
  const absl::Status status =
      stored == nullptr ? absl::OkStatus() : stored->Finish();
  if (status.ok()) return code;
  std::cerr << "ERROR: " << TextWithCode(status) << std::endl;
  return code == 0 ? 1 : code;
}

const RegisterFunction<RunOptions> train("train", AddFlags,
                                         [](const RunOptions& options) {
                                           RunOptions collecting = options;
                                           collecting.collect = true;
                                           return RunTraining(collecting);
                                         });
const RegisterFunction<RunOptions> check(
    "check",
    [](Flags& flags, RunOptions* options) {
      AddFlags(flags, options);
      flags.Add("--json", &options->json, "Print JSON, for programs");
    },
    Check);

}  // namespace

absl::StatusOr<int> RunTraining(const RunOptions& given) {
  // Before anything is printed.
  IgnorePipeSignals();
  RunOptions options = given;
  options.starts_run = true;
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           Prepare(options));
  if (prepared == nullptr) return 0;
  TrainJob& job = prepared->job;
  Place& place = prepared->place;
  const Train& settings = job.loaded.config.train();
  place.mirrors = !settings.has_mirror_every() || settings.mirror_every() != 0;
  const RankMain train = [&prepared](const RankInfo& rank) -> absl::Status {
    if (rank.world_size != prepared->processes) {
      // In this fork: hosts are gone.
      CAPSTAN_RETURN_IF_ERROR(PlanAnew(rank.world_size, prepared.get()));
    }
    return RunTraining(&prepared->job, rank);
  };
  place.info.meeting_folder =
      MeetingFolder(job.loaded.config, job.workspace_folder);
  if (!place.forks) {
    CAPSTAN_RETURN_IF_ERROR(AskLauncher(&place));
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<StoredRun> stored,
                             StartUploads(job.loaded, place.info.rank == 0));
    const int code = WithUploads(RunSingleRank(place.info, train), stored);
    // Skip static destructors: NCCL's and the store's threads still run.
    std::cout.flush();
    std::cerr.flush();
    _exit(code);
  }
  if (place.Alone()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        job.folder,
        PrepareOutputFolder(job.loaded.config, job.workspace_folder));
  } else if (place.info.node_rank > 0) {
    // The banner is host 0's: here nothing else would show up for long.
    RankInfo first = place.info;
    first.rank = first.node_rank * first.local_world_size;
    std::cerr << "placed by " << PlaceText(first) << ", the first of "
              << first.local_world_size << " here" << std::endl;
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<StoredRun> stored,
                           StartUploads(job.loaded, place.info.node_rank == 0));
  job.known_notes = job.notes.size();
  std::unique_ptr<ChangingHosts> hosts;
  if (place.changes) {
    CAPSTAN_ASSIGN_OR_RETURN(hosts, HostsOf(job.loaded.config, place));
  }
  return WithUploads(LaunchRanks(place, train, hosts.get()), stored);
}

}  // namespace capstan
