// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/prepare.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/gpus.h"
#include "base/machine.h"
#include "cluster/comm/create.h"
#include "cluster/launch/place.h"
#include "kernels/context/run_device.h"
#include "trainer/commands/collect_command.h"
#include "trainer/session/machine_check.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/new_tokens.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

LaunchSettings SettingsOf(const Launch& launch) {
  LaunchSettings settings;
  settings.processes = launch.processes();
  settings.nodes = launch.nodes();
  if (launch.has_node_rank()) settings.node_rank = launch.node_rank();
  settings.rendezvous = launch.rendezvous();
  settings.interface = launch.interface();
  settings.gpu_ids.assign(launch.gpu_ids().begin(), launch.gpu_ids().end());
  settings.max_restarts = launch.max_restarts();
  settings.min_processes = launch.min_processes();
  settings.return_seconds = launch.return_seconds();
  settings.nccl.timeout_seconds = launch.nccl().timeout_seconds();
  settings.nccl.buffer_mib = launch.nccl().buffer_mib();
  settings.nccl.min_ctas = launch.nccl().min_ctas();
  settings.nccl.max_ctas = launch.nccl().max_ctas();
  return settings;
}

// `planned`: the GPUs needn't be here, and the driver isn't asked.
absl::StatusOr<Place> PlaceOf(const LoadedConfig& loaded, int gpus,
                              bool planned) {
  const int on_machine = planned ? gpus : gpus > 0 ? Gpus().on_machine : 0;
  absl::StatusOr<Place> place =
      FindPlace(SettingsOf(loaded.config.launch()), gpus, on_machine);
  // Others are about the environment.
  if (FieldOf(place.status()).has_value()) {
    return loaded.Locate(place.status(), "launch");
  }
  return place;
}

// Before the batch is planned: applies what a resumed run keeps.
absl::Status KeepBatch(Prepared* prepared) {
  TrainJob& job = prepared->job;
  const std::string checkpoint =
      CheckpointToResume(job.loaded.config, job.workspace_folder);
  if (checkpoint.empty()) return absl::OkStatus();
  const absl::StatusOr<TrainState> earlier = CheckpointState(checkpoint);
  // Loading it will report the damage.
  if (!earlier.ok()) return absl::OkStatus();
  const int64_t micro_batch = job.loaded.config.batch().micro_batch_size();
  const absl::StatusOr<std::string> note =
      KeepGlobalBatch(checkpoint, *earlier, prepared->processes,
                      job.loaded.config.mutable_batch());
  CAPSTAN_RETURN_IF_ERROR(job.loaded.Locate(note.status(), "batch"));
  if (micro_batch != Batching::AUTO) job.evaluation_batch = micro_batch;
  if (!note->empty()) job.notes.push_back(*note);
  return absl::OkStatus();
}

// The flags that stand for fields of `launch`: their names and values.
std::vector<std::pair<std::string, std::string>> LaunchFlags(
    const RunOptions& options) {
  std::vector<std::pair<std::string, std::string>> flags;
  if (options.nodes.has_value()) {
    flags.emplace_back("nodes", absl::StrCat(*options.nodes));
  }
  if (options.node_rank.has_value()) {
    flags.emplace_back("node_rank", absl::StrCat(*options.node_rank));
  }
  if (!options.rendezvous.empty()) {
    flags.emplace_back("rendezvous", options.rendezvous);
  }
  return flags;
}

// Settles batch and memory of `prepared->processes` ranks.
// With `here` the run is for this machine, whose memory it needs; else for GPUs
// of CurrentRunDevice's memory, if that is known.
absl::Status PlanRun(Prepared* prepared, bool here = true) {
  TrainJob& job = prepared->job;
  CAPSTAN_ASSIGN_OR_RETURN(
      job.batch, CheckRun(job.loaded, prepared->processes, job.parts));
  const int ranks_here = prepared->place.info.local_world_size;
  if (job.batch.automatic) {
    const int64_t budget =
        here ? MemoryBudget(job.gpus > 0, ranks_here)
             : RoomOfGpu(CurrentRunDevice().memory, prepared->processes)
                   .for_tensors();
    const int64_t micro = PlanMicroBatch(
        *job.parts.strategy, MemoryRequestOf(job, prepared->processes),
        MicroBatchSizes(job.batch.global_batch_size, prepared->processes),
        budget);
    job.batch = WithMicroBatch(job.batch, micro, prepared->processes);
  }
  const MemoryRequest memory = MemoryRequestOf(job, prepared->processes);
  if (here) {
    CAPSTAN_RETURN_IF_ERROR(
        job.loaded.Locate(CheckHostMemory(*job.parts.strategy, memory,
                                          ranks_here, AvailableHostMemory()),
                          "strategy"));
  }
  job.memory = PlanMemory(*job.parts.strategy, memory);
  return absl::OkStatus();
}

// The GPUs that the run is for, and what is to be said of them. A run that is
// only looked at goes on without those that can't be used.
absl::Status TakeGpus(const RunOptions& options, TrainJob* job) {
  if (options.planned_gpus > 0) {
    job->gpus = options.planned_gpus;
    return absl::OkStatus();
  }
  const absl::StatusOr<int> gpus = GpusOfRun();
  if (!gpus.ok() && options.starts_run) return gpus.status();
  if (!gpus.ok()) {
    std::cerr << "without GPUs: " << gpus.status().message() << "\n";
  }
  job->gpus = gpus.value_or(0);
  if (!Gpus().note.empty()) job->notes.push_back(Gpus().note);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Prepared>> PrepareRun(
    const RunOptions& options) {
  auto prepared = std::make_unique<Prepared>();
  prepared->host =
      std::make_unique<PluginHost>(AllFromCaller(options.plugin_path));
  prepared->context = DefaultConfigContext(prepared->host.get());
  if (options.configs.empty() && options.config_text.empty()) {
    return absl::InvalidArgumentError(
        "no --config is given; try --config=run_distributed.pbtxt, or --help");
  }
  TrainJob& job = prepared->job;
  CAPSTAN_ASSIGN_OR_RETURN(
      job.loaded,
      options.config_text.empty()
          ? LoadConfig(options.configs, options.overrides, prepared->context)
          : ParseConfig(options.config_text, "the command's config",
                        prepared->context, options.overrides));
  if (options.print_config) {
    std::cout << PrintConfig(job.loaded.config);
    return nullptr;
  }
  job.start_seconds = ThisCall().start_seconds;
  job.command = ThisCall().words;
  job.workspace_folder = prepared->context.workspace_folder;
  CAPSTAN_RETURN_IF_ERROR(TakeGpus(options, &job));
  CAPSTAN_ASSIGN_OR_RETURN(
      prepared->place, PlaceOf(job.loaded, job.gpus, options.planned_gpus > 0));
  const Place& place = prepared->place;
  if (options.starts_run) {
    CAPSTAN_RETURN_IF_ERROR(place.may_train);
    CAPSTAN_RETURN_IF_ERROR(
        job.loaded.Locate(CheckRanks(place.info.local_world_size), "launch"));
  }
  prepared->processes =
      options.planned_gpus > 0 ? options.planned_gpus : place.info.world_size;
  if (!place.forks && job.loaded.config.launch().max_restarts() > 0) {
    job.notes.push_back(
        absl::StrCat("launch.max_restarts isn't used: ", place.info.placed_by,
                     " starts ranks, and starts them again by its own rules"));
  }
  CAPSTAN_RETURN_IF_ERROR(KeepBatch(prepared.get()));
  // Once, not by each rank or host.
  CAPSTAN_RETURN_IF_ERROR(CollectMissing(job.loaded, *prepared->host,
                                         options.collect && place.Alone()));
  const std::string checkpoint =
      CheckpointToResume(job.loaded.config, job.workspace_folder);
  CAPSTAN_RETURN_IF_ERROR(
      SettleNewTokens(&job.loaded, *prepared->host, checkpoint));
  CAPSTAN_ASSIGN_OR_RETURN(
      job.parts,
      CreateRunParts(job.loaded, job.gpus, *prepared->host,
                     /*here=*/options.planned_gpus == 0, checkpoint));
  CAPSTAN_RETURN_IF_ERROR(
      PlanRun(prepared.get(), /*here=*/options.planned_gpus == 0));
  if (options.starts_run) {
    CAPSTAN_RETURN_IF_ERROR(job.loaded.Locate(
        CheckTensors(job, prepared->processes, place.info.local_world_size),
        "batch"));
  }
  const std::string slow = SlowPrecisionNote(
      *job.parts.precision, job.parts.precision_name, job.parts.device);
  if (!slow.empty()) job.notes.push_back(slow);
  for (const std::string& note :
       GpuSettingNotes(job.loaded.config.train(), job.parts.device)) {
    job.notes.push_back(note);
  }
  return prepared;
}

}  // namespace

absl::StatusOr<int> GpusOfRun() {
  const GpuReport& report = Gpus();
  CAPSTAN_RETURN_IF_ERROR(report.status);
  if (report.gpus.empty() || HasGpuParts()) return CountGpus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this machine has ", CountGpus(), " GPUs (", report.gpus[0].name,
      "), but this trainer was built without its GPU parts: build it with "
      "--repo_env=CAPSTAN_GPU=on, or take the archive of //:dist_gpu, whose "
      "name ends in cuda13 (set CUDA_VISIBLE_DEVICES= to train on the CPU "
      "instead)"));
}

absl::Status PlanAnew(int processes, Prepared* prepared) {
  TrainJob& job = prepared->job;
  TrainState begun;
  begun.global_batch_size = job.batch.global_batch_size;
  Batching* const batch = job.loaded.config.mutable_batch();
  const int64_t micro_batch = batch->micro_batch_size();
  prepared->processes = processes;
  const absl::StatusOr<std::string> note =
      KeepGlobalBatch("output_dir", begun, processes, batch);
  CAPSTAN_RETURN_IF_ERROR(job.loaded.Locate(note.status(), "batch"));
  if (micro_batch != Batching::AUTO && job.evaluation_batch == 0) {
    job.evaluation_batch = job.batch.micro_batch_size;
  }
  if (!note->empty()) job.notes.push_back(*note);
  return PlanRun(prepared);
}

absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const RunOptions& given) {
  RunOptions options = given;
  const auto flags = LaunchFlags(given);
  for (const auto& [name, value] : flags) {
    options.overrides.push_back(absl::StrCat("launch.", name, "=", value));
  }
  absl::StatusOr<std::unique_ptr<Prepared>> prepared = PrepareRun(options);
  if (prepared.ok() || flags.empty()) return prepared;
  // Names flags as they were typed.
  std::string message(prepared.status().message());
  for (const auto& [name, value] : flags) {
    const std::string flag = absl::StrCat("--", name, "=", value);
    const std::string set = absl::StrCat("--set launch.", name, "=", value);
    absl::StrReplaceAll(
        {{absl::StrCat(set, ": launch.", name, ": "), absl::StrCat(flag, ": ")},
         {set, flag}},
        &message);
  }
  if (message == prepared.status().message()) return prepared;
  return absl::Status(prepared.status().code(), message);
}

absl::StatusOr<CommandHost::Ranks> RanksOfRun() {
  CAPSTAN_ASSIGN_OR_RETURN(
      const Place place,
      FindPlace(LaunchSettings(), HasGpuParts() ? CountGpus() : 0));
  CommandHost::Ranks ranks;
  ranks.from_environment = !place.info.placed_by.empty();
  ranks.count = place.info.world_size;
  return ranks;
}

}  // namespace capstan
