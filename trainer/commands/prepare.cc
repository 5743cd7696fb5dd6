// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/prepare.h"

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/gpus.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/launch/network.h"
#include "cluster/launch/place.h"
#include "host/config/defaults.h"
#include "host/config/flag_overrides.h"
#include "host/config/mend.h"
#include "kernels/context/run_device.h"
#include "trainer/commands/collect_command.h"
#include "trainer/commands/fit_run.h"
#include "trainer/metrics/console.h"
#include "trainer/session/check_run.h"
#include "trainer/session/machine_check.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/new_tokens.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/sharding_note.h"
#include "trainer/session/stored_run.h"
#include "trainer/session/watch.h"

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
  settings.max_processes = launch.max_processes();
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
  LaunchSettings settings = SettingsOf(loaded.config.launch());
  if (settings.nccl.timeout_seconds == 0) {
    settings.nccl.timeout_seconds = LongestHang(loaded.config.train());
  }
  absl::StatusOr<Place> place = FindPlace(settings, gpus, on_machine);
  // Others are about the environment.
  if (FieldOf(place.status()).has_value()) {
    return loaded.Locate(place.status(), "launch");
  }
  if (!place.ok()) return WithCode(place.status(), "launch/environment");
  return place;
}

// Before the batch is planned: applies what a run that resumes from
// `checkpoint`, if not empty, keeps.
void KeepBatch(const std::string& checkpoint, Prepared* prepared) {
  TrainJob& job = prepared->job;
  // Hosts that come before the first checkpoint and after it have one config:
  // it names the global batch, and each world plans its micro-batch anew.
  if (checkpoint.empty() || prepared->place.changes) return;
  const absl::StatusOr<TrainState> earlier = CheckpointState(checkpoint);
  // Loading it will report the damage.
  if (!earlier.ok()) return;
  const int64_t micro_batch = job.loaded.config.batch().micro_batch_size();
  const std::string note =
      KeepGlobalBatch(checkpoint, *earlier,
                      MeshOf(job.loaded.config.train(), prepared->processes),
                      job.loaded.config.train().deterministic(),
                      job.loaded.config.mutable_batch());
  if (micro_batch != Batching::AUTO) job.evaluation_batch = micro_batch;
  if (!note.empty()) job.notes.push_back(note);
}

// What stands for fields of `launch`.
FlagOverrides LaunchFlags(const RunOptions& options) {
  FlagOverrides flags;
  const auto add = [&flags](const char* name, const std::string& value) {
    flags.emplace_back(absl::StrCat("launch.", name, "=", value),
                       absl::StrCat("--", name, "=", value));
  };
  if (options.nodes.has_value()) add("nodes", absl::StrCat(*options.nodes));
  if (options.node_rank.has_value()) {
    add("node_rank", absl::StrCat(*options.node_rank));
  }
  if (!options.rendezvous.empty()) add("rendezvous", options.rendezvous);
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
  const int at_once =
      MeshOf(job.loaded.config.train(), prepared->processes).data;
  if (job.batch.automatic) {
    const int64_t budget =
        here ? MemoryBudget(job.gpus > 0, ranks_here)
             : RoomOfGpu(CurrentRunDevice().memory, prepared->processes)
                   .for_tensors();
    const int64_t micro = PlanMicroBatch(
        *job.parts.strategy, MemoryRequestOf(job, prepared->processes),
        MicroBatchSizes(job.batch.global_batch_size, at_once), budget);
    job.batch = WithMicroBatch(job.batch, micro, at_once);
  }
  const MemoryRequest memory = MemoryRequestOf(job, prepared->processes);
  if (here) {
    CAPSTAN_RETURN_IF_ERROR(job.loaded.Locate(
        WithCode(CheckHostMemory(*job.parts.strategy, memory, ranks_here,
                                 AvailableHostMemory()),
                 "memory/host"),
        "strategy"));
  }
  job.memory = PlanMemory(*job.parts.strategy, memory);
  const std::string idle = IdleRanksNote(
      job.batch, MeshOf(job.loaded.config.train(), prepared->processes));
  // An automatic micro-batch may become another.
  if (!idle.empty() && !job.batch.automatic) job.notes.push_back(idle);
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
  if (!gpus.ok() && options.starts_run) {
    return WithCode(gpus.status(), "gpu/unusable");
  }
  if (!gpus.ok()) {
    std::cerr << "without GPUs: " << gpus.status().message() << "\n";
  }
  job->gpus = gpus.value_or(0);
  if (!Gpus().note.empty()) job->notes.push_back(Gpus().note);
  return absl::OkStatus();
}

// Where a config file names its strategy, if it says nothing of it but that:
// the line with `package` in its place.
absl::optional<Mend> MendOfStrategy(const Prepared& prepared,
                                    const std::string& package) {
  const LoadedConfig& loaded = prepared.job.loaded;
  const auto place = loaded.locations.find("strategy");
  if (place == loaded.locations.end()) return absl::nullopt;
  // run.pbtxt:6:1
  const std::vector<std::string> parts = absl::StrSplit(place->second, ':');
  Mend mend;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &mend.line)) {
    return absl::nullopt;
  }
  const auto path = FindConfig(parts[0], prepared.context);
  const auto text = path.ok() ? ReadWholeFile(*path) : path.status();
  if (!text.ok()) return absl::nullopt;
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  if (mend.line < 1 || static_cast<size_t>(mend.line) > lines.size()) {
    return absl::nullopt;
  }
  mend.file = *path;
  mend.before = lines[mend.line - 1];
  const std::string own =
      absl::StrCat("[plugin/", TypeOf(loaded.config.strategy()), "]");
  const size_t at = mend.before.find(own);
  if (at == std::string::npos) return absl::nullopt;
  const absl::string_view rest =
      absl::string_view(mend.before).substr(at + own.size());
  const size_t end = rest.find('}');
  // Without one its fields may be on the lines below.
  if (end == rest.npos ||
      absl::StripAsciiWhitespace(rest.substr(0, end)) != "{") {
    return absl::nullopt;
  }
  mend.after = absl::StrCat(mend.before.substr(0, at), "[plugin/", package,
                            ".Config]", rest);
  return mend;
}

// A run alone on its machine whose strategy's tensors don't fit, by the plan,
// where another's do: the name of that. "" if all is well, or nothing is known.
std::string BetterStrategy(const Prepared& prepared, int64_t room) {
  const MemoryPlan& plan = prepared.job.memory;
  return prepared.place.Alone() && plan.activations_known &&
                 Total(plan.at_peak) > room
             ? StrategyThatFits(prepared, room)
             : "";
}

// If BetterStrategy has a name for it: a note or, if the device is too small as
// a whole and the run is to start or its config to be mended, the error.
absl::Status CheckDeviceMemory(const RunOptions& options, int64_t room,
                               const std::string& better, Prepared* prepared) {
  TrainJob& job = prepared->job;
  const int ranks = prepared->place.info.local_world_size;
  const int64_t all = job.gpus > 0 ? LeastGpuMemory() : HostMemory() / ranks;
  const int64_t needed = Total(job.memory.at_peak);
  const std::string text = absl::StrCat(
      job.parts.strategy_name, " needs ", ShortBytes(needed),
      " for the tensors of a rank, which has ", ShortBytes(room), "; ", better,
      " fits: write strategy { [plugin/", better, ".Config] {} }");
  const absl::optional<Mend> mend = MendOfStrategy(*prepared, better);
  // What others hold of the device now doesn't make the config wrong.
  if (needed <= all ||
      (!options.starts_run && !(options.apply && mend.has_value()))) {
    job.notes.push_back(absl::StrCat("WARNING: ", text));
    return absl::OkStatus();
  }
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat(text, mend.has_value() ? " (--apply does)" : ""));
  status = job.loaded.Locate(WithCode(status, "memory/strategy"), "strategy");
  return mend.has_value() ? WithMend(status, *mend) : status;
}

absl::StatusOr<std::unique_ptr<Prepared>> PrepareRun(const RunOptions& options);

// If the strategy needs more memory than a rank has here and another doesn't:
// the run prepared with that one if the strategy is a default, else what
// CheckDeviceMemory says. Null: `prepared` stays.
absl::StatusOr<std::unique_ptr<Prepared>> SettleStrategy(
    const RunOptions& options, Prepared* prepared) {
  const TrainJob& job = prepared->job;
  const int64_t room =
      MemoryBudget(job.gpus > 0, prepared->place.info.local_world_size);
  const std::string better = BetterStrategy(*prepared, room);
  if (better.empty()) return nullptr;
  const auto placed = job.loaded.locations.find("strategy");
  if (placed == job.loaded.locations.end() ||
      !absl::StartsWith(placed->second, "defaults of ")) {
    CAPSTAN_RETURN_IF_ERROR(CheckDeviceMemory(options, room, better, prepared));
    return nullptr;
  }
  RunOptions other = options;
  other.overrides.push_back(absl::StrCat("strategy=", better));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Prepared> fitting,
                           PrepareRun(other));
  fitting->job.notes.push_back(
      absl::StrCat("strategy ", better, ", as the default, ",
                   job.parts.strategy_name, ", doesn't fit into memory"));
  return fitting;
}

// If output_dir is an address, fetches what the run goes on from.
absl::Status FetchOutput(const LoadedConfig& loaded, const Place& place) {
  const absl::optional<Address> address = StoredOutput(loaded);
  if (!address.has_value()) return absl::OkStatus();
  if (place.changes) {
    return loaded.Locate(
        FieldError("max_processes",
                   "needs an output_dir that all hosts share: an address in "
                   "object storage is uploaded to by one host, which may go"),
        "launch");
  }
  if (place.forks && place.info.nodes > 1 &&
      loaded.config.launch().max_restarts() > 0) {
    return loaded.Locate(
        FieldError("max_restarts",
                   "can't be set with an output_dir in object storage on "
                   "several hosts: the first one uploads, and the others "
                   "can't go on without it; leave it out"),
        "launch");
  }
  return FetchStoredRun(*address, loaded);
}

absl::StatusOr<std::unique_ptr<Prepared>> PrepareRun(
    const RunOptions& options) {
  auto prepared = std::make_unique<Prepared>();
  prepared->host =
      std::make_unique<PluginHost>(AllFromCaller(options.plugin_path));
  prepared->context = DefaultConfigContext(prepared->host.get());
  if (options.configs.empty() && options.config_text.empty()) {
    return WithCode(
        absl::InvalidArgumentError("no --config is given; try "
                                   "--config=run_distributed.pbtxt, or --help"),
        "config/file");
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
  CAPSTAN_RETURN_IF_ERROR(CheckWhole(job.loaded.config));
  job.start_seconds = ThisCall().start_seconds;
  job.command = ThisCall().words;
  job.workspace_folder = prepared->context.workspace_folder;
  CAPSTAN_RETURN_IF_ERROR(TakeGpus(options, &job));
  CAPSTAN_ASSIGN_OR_RETURN(
      prepared->place, PlaceOf(job.loaded, job.gpus, options.planned_gpus > 0));
  const Place& place = prepared->place;
  job.forks = place.forks;
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
  if (options.starts_run) {
    CAPSTAN_RETURN_IF_ERROR(FetchOutput(job.loaded, place));
  }
  const std::string checkpoint =
      CheckpointToResume(job.loaded.config, job.workspace_folder);
  KeepBatch(checkpoint, prepared.get());
  // Once, not by each rank or host.
  CAPSTAN_RETURN_IF_ERROR(CollectMissing(job.loaded, *prepared->host,
                                         options.collect && place.Alone()));
  CAPSTAN_RETURN_IF_ERROR(
      SettleNewTokens(&job.loaded, *prepared->host, checkpoint));
  CAPSTAN_ASSIGN_OR_RETURN(
      job.parts,
      CreateRunParts(job.loaded, job.gpus, *prepared->host,
                     /*here=*/options.planned_gpus == 0, checkpoint));
  CAPSTAN_RETURN_IF_ERROR(
      PlanRun(prepared.get(), /*here=*/options.planned_gpus == 0));
  // GPUs that are elsewhere have another room, and the driver isn't asked.
  if (options.planned_gpus == 0) {
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Prepared> fitting,
                             SettleStrategy(options, prepared.get()));
    if (fitting != nullptr) return fitting;
  }
  if (options.starts_run) {
    CAPSTAN_RETURN_IF_ERROR(job.loaded.Locate(
        CheckTensors(job, prepared->processes, place.info.local_world_size),
        "batch"));
  }
  const std::string fabric =
      job.gpus > 0 && place.info.nodes > 1 ? UnusableFabric() : "";
  if (!fabric.empty()) {
    job.notes.push_back(absl::StrCat(
        "WARNING: this host has ", fabric,
        ", but not libibverbs.so.1, so that "
        "NCCL takes TCP between hosts, many times slower: install libibverbs1 "
        "(rdma-core)"));
  }
  if (job.gpus > 0 && options.planned_gpus == 0) {
    CAPSTAN_ASSIGN_OR_RETURN(const auto strategy,
                             Unpack(job.loaded.config.strategy()));
    const std::string sharding = ShardingNote(*strategy, place.info);
    if (!sharding.empty()) job.notes.push_back(sharding);
  }
  const std::string slow = SlowPrecisionNote(
      *job.parts.precision, job.parts.precision_name, job.parts.device);
  if (!slow.empty()) job.notes.push_back(slow);
  for (const std::string& note :
       GpuSettingNotes(job.loaded.config.train(), job.parts.device)) {
    job.notes.push_back(note);
  }
  if (job.parts.device.gpu && job.loaded.config.train().witness().check()) {
    job.notes.push_back("train.witness has no effect on a GPU");
  }
  return prepared;
}

}  // namespace

absl::StatusOr<int> GpusOfRun() {
  const GpuReport& report = Gpus();
  CAPSTAN_RETURN_IF_ERROR(report.status);
  if (report.gpus.empty() || HasGpuParts()) return CountGpus();
  return WithCode(
      absl::FailedPreconditionError(absl::StrCat(
          "this machine has ", CountGpus(), " GPUs (", report.gpus[0].name,
          "), but this trainer was built without its GPU parts: build it with "
          "--repo_env=CAPSTAN_GPU=on, or take the archive of //:dist_gpu, "
          "whose "
          "name ends in cuda13 (set CUDA_VISIBLE_DEVICES= to train on the CPU "
          "instead)")),
      "gpu/no-parts");
}

absl::Status PlanAnew(int processes, Prepared* prepared) {
  TrainJob& job = prepared->job;
  TrainState begun;
  begun.global_batch_size = job.batch.global_batch_size;
  Batching* const batch = job.loaded.config.mutable_batch();
  const int64_t micro_batch = batch->micro_batch_size();
  prepared->processes = processes;
  const std::string note = KeepGlobalBatch(
      "output_dir", begun, MeshOf(job.loaded.config.train(), processes),
      job.loaded.config.train().deterministic(), batch);
  if (micro_batch != Batching::AUTO && job.evaluation_batch == 0) {
    job.evaluation_batch = job.batch.micro_batch_size;
  }
  if (!note.empty()) job.notes.push_back(note);
  return PlanRun(prepared);
}

absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const RunOptions& given) {
  RunOptions options = given;
  const FlagOverrides flags = LaunchFlags(given);
  for (const auto& [override, typed] : flags) {
    options.overrides.push_back(override);
  }
  absl::StatusOr<std::unique_ptr<Prepared>> prepared = PrepareRun(options);
  while (given.apply && MendOf(prepared.status()).has_value()) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string diff,
                             ApplyMend(*MendOf(prepared.status())));
    // With --json what is printed is JSON alone.
    (given.json ? std::cerr : std::cout) << diff << std::flush;
    prepared = PrepareRun(options);
  }
  if (prepared.ok()) return prepared;
  return AsTyped(prepared.status(), flags);
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
