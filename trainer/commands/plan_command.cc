// SPDX-License-Identifier: Apache-2.0
//
// plan: what a run holds and sends under its own and every other available
// strategy.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/gpus.h"
#include "base/machine.h"
#include "base/status.h"
#include "host/config/create_slot.h"
#include "host/config/load_config.h"
#include "inference/load/create_model.h"
#include "kernels/context/run_device.h"
#include "plugins/sdk/model.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/fit.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/console.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/new_tokens.h"

namespace capstan {
namespace {

// The run's strategy first, then the others by name.
struct Plans {
  std::vector<PlannedStrategy> planned;
  std::vector<RefusedStrategy> refused;
};

// Plans for another strategy with default settings.
absl::StatusOr<MemoryPlan> PlanDefault(const std::string& config_type,
                                       const MemoryRequest& request,
                                       PluginHost& host) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<Strategy> strategy,
      host.Create<Strategy>(config_type, PluginCategory::kStrategy, ""));
  CAPSTAN_RETURN_IF_ERROR(strategy->Check(request.strategy));
  return PlanMemory(*strategy, request);
}

Plans PlanAll(const Prepared& prepared) {
  const TrainJob& job = prepared.job;
  const std::string own_type = TypeOf(job.loaded.config.strategy());
  const MemoryRequest request = MemoryRequestOf(job, prepared.processes);
  Plans plans;
  plans.planned.push_back({job.parts.strategy_name, "this run", job.memory});
  for (const std::string& package : prepared.host->Available()) {
    const absl::StatusOr<const LoadedPlugin*> plugin =
        prepared.host->Load(absl::StrCat(package, ".Config"));
    // Broken plugins are left to `trainer plugins`.
    if (!plugin.ok() ||
        (*plugin)->descriptor->category != PluginCategory::kStrategy ||
        (*plugin)->config_type == own_type) {
      continue;
    }
    absl::StatusOr<MemoryPlan> plan =
        PlanDefault((*plugin)->config_type, request, *prepared.host);
    if (plan.ok()) {
      plans.planned.push_back({package, "defaults", *plan});
    } else {
      plans.refused.push_back({package, std::string(plan.status().message())});
    }
  }
  return plans;
}

// `fit`: the micro-batch is still to be chosen.
std::string Heading(const Prepared& prepared, bool fit) {
  const TrainJob& job = prepared.job;
  int64_t parameters = 0;
  for (const ParameterSpec& spec : job.parts.model->parameters()) {
    parameters += spec.numel();
  }
  const int64_t length = job.parts.train_data->max_sequence_length();
  std::vector<std::pair<std::string, std::string>> rows = {
      {"ranks",
       absl::StrCat(prepared.processes, job.gpus > 0 ? " x GPU" : " x CPU")},
      {"precision", job.parts.precision_name},
      {"parameters", ShortCount(static_cast<double>(parameters))},
  };
  const std::string tokens =
      length > 0 ? absl::StrCat(" x ", length, " tokens") : std::string();
  if (fit) {
    rows.emplace_back("global batch",
                      absl::StrCat(job.batch.global_batch_size, tokens));
  } else {
    rows.emplace_back(
        "micro-batch",
        absl::StrCat(job.batch.micro_batch_size,
                     job.batch.automatic ? " (AUTO)" : "", tokens));
    rows.emplace_back("accumulation", absl::StrCat(job.batch.accumulation));
  }
  return absl::StrCat("Capstan plan: ", job.loaded.config.name(), "\n",
                      TableText(rows), "\n");
}

// Bytes of the files that this process has mapped, but for code: data, token
// files, weights.
int64_t MappedBytes() {
  std::map<std::string, int64_t> files;
  std::set<std::string> code;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos) continue;
    const std::string file = line.substr(path);
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::MaxSplits(absl::ByAnyChar("- "), 3));
    uint64_t begin = 0, end = 0;
    if (words.size() < 3 || !absl::SimpleHexAtoi(words[0], &begin) ||
        !absl::SimpleHexAtoi(words[1], &end)) {
      continue;
    }
    if (absl::StrContains(words[2], "x")) code.insert(file);
    files[file] += static_cast<int64_t>(end - begin);
  }
  int64_t bytes = 0;
  for (const auto& [file, size] : files) {
    if (code.count(file) == 0) bytes += size;
  }
  return bytes;
}

struct PlanOptions {
  RunOptions run;
  bool fit = false;
  std::string gpu_memory;
  int gpus = 0;
};

// The plugins of a choice; those of another are made anew.
struct ChosenParts {
  std::unique_ptr<Model> model;  // null: the prepared one
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<Optimizer> optimizer;
};

absl::StatusOr<ChosenParts> MakeChosen(const RunOptions& options,
                                       const FitChoice& choice,
                                       const Prepared& prepared) {
  std::vector<std::string> overrides = options.overrides;
  for (std::string& set : choice.Overrides()) {
    overrides.push_back(std::move(set));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      LoadedConfig loaded,
      LoadConfig(options.configs, overrides, prepared.context));
  PluginHost& host = *prepared.host;
  CAPSTAN_RETURN_IF_ERROR(SettleNewTokens(&loaded, host));
  ChosenParts parts;
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.strategy,
      CreateSlot<Strategy>(loaded, "strategy", loaded.config.strategy(),
                           PluginCategory::kStrategy, host));
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.optimizer,
      CreateSlot<Optimizer>(loaded, "optimizer", loaded.config.optimizer(),
                            PluginCategory::kOptimizer, host));
  if (choice.quantize) {
    CAPSTAN_ASSIGN_OR_RETURN(parts.model, CreateModel(loaded, host));
  }
  return parts;
}

FitLimits LimitsOf(const Prepared& prepared) {
  const TrainJob& job = prepared.job;
  const RunConfig& config = job.loaded.config;
  FitLimits limits;
  limits.gpus = prepared.processes;
  limits.global_batch = job.batch.global_batch_size;
  for (const int64_t size :
       MicroBatchSizes(job.batch.global_batch_size, prepared.processes)) {
    if (size <= 64) limits.micro_batches.push_back(size);
  }
  limits.adamw = TypeOf(config.optimizer()) == "capstan.adamw.Config";
  const Model& model = *job.parts.model;
  int64_t all = 0, trained = 0;
  bool packed = false;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    all += spec.numel();
    if (spec.trainable) trained += spec.numel();
    packed = packed || model.PackedBytes(static_cast<int>(i)) > 0;
  }
  // One that is packed already stays as it is.
  limits.quantizable = config.adapter().has_lora() && !packed;
  limits.few_trained = trained < all / 20;
  return limits;
}

// A choice with its plan.
struct Fitted {
  FitChoice choice;
  MemoryPlan plan;
};

// The first choice whose tensors take at most `room`; if there is none, that
// which takes least, and `fits` is false.
absl::StatusOr<Fitted> Fit(const RunOptions& options, const Prepared& prepared,
                           int64_t room, bool* fits) {
  const TrainJob& job = prepared.job;
  std::map<std::string, absl::StatusOr<ChosenParts>> made;
  absl::optional<Fitted> least;
  for (FitChoice& choice : FitChoices(LimitsOf(prepared))) {
    const std::string key = absl::StrJoin(choice.Overrides(), " ");
    auto found = made.find(key);
    if (found == made.end()) {
      found = made.emplace(key, MakeChosen(options, choice, prepared)).first;
    }
    // A model may not be able to quantise.
    if (!found->second.ok() && choice.quantize) continue;
    CAPSTAN_RETURN_IF_ERROR(found->second.status());
    const ChosenParts& parts = *found->second;
    MemoryRequest request = MemoryRequestOf(job, prepared.processes);
    if (parts.model != nullptr) request.strategy.model = parts.model.get();
    request.optimizer = request.strategy.optimizer = parts.optimizer.get();
    request.samples = choice.micro_batch;
    request.strategy.accumulation =
        WithMicroBatch(job.batch, choice.micro_batch, prepared.processes)
            .accumulation;
    request.checkpointing.every = choice.checkpoint_every;
    request.checkpointing.offload = choice.offload_activations;
    request.paged_state = choice.paged_state;
    if (!parts.strategy->Check(request.strategy).ok()) continue;
    Fitted fitted = {std::move(choice), PlanMemory(*parts.strategy, request)};
    if (!fitted.plan.activations_known) {
      return absl::FailedPreconditionError(
          "--fit: this model doesn't tell what its activations take");
    }
    *fits = Total(fitted.plan.at_peak) <= room;
    if (*fits) return fitted;
    if (!least.has_value() ||
        Total(fitted.plan.at_peak) < Total(least->plan.at_peak)) {
      least = std::move(fitted);
    }
  }
  if (!least.has_value()) {
    return absl::FailedPreconditionError(
        "--fit: no strategy can run this config on these GPUs");
  }
  return *std::move(least);
}

absl::StatusOr<int> PrintFit(const RunOptions& options,
                             const Prepared& prepared, const GpuRoom& room) {
  bool fits = false;
  CAPSTAN_ASSIGN_OR_RETURN(const Fitted fitted,
                           Fit(options, prepared, room.for_tensors(), &fits));
  const std::string table = DeviceTable(fitted.plan, room, prepared.processes);
  if (!fits) {
    std::cout << "Even with\n" << fitted.choice.ConfigText() << "\n" << table;
    return absl::ResourceExhaustedError(absl::StrCat(
        "nothing fits: ",
        ShortBytes(Total(fitted.plan.at_peak) - room.for_tensors()),
        " are missing on each GPU; take more or larger GPUs, shorter "
        "sequences, an adapter (adapter { lora {} }) or a smaller model"));
  }
  std::cout << "This fits, and costs the least time of what does, by an "
               "estimate. Lines for\nthe config, or for a file to add with "
               "a second --config:\n\n"
            << fitted.choice.ConfigText() << "\n"
            << table;
  return 0;
}

// Has `options` plan for `gpus` GPUs, which needn't be here; 0: for as many as
// the config has ranks or, if it doesn't say, as there are here, at least one.
// With `fit` the choices that are to be made are not in the way, and the global
// batch stays what it is.
absl::Status PlanForGpus(int gpus, bool fit, RunOptions* options) {
  PluginHost host(AllFromCaller(options->plugin_path));
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           LoadConfig(options->configs, options->overrides,
                                      DefaultConfigContext(&host)));
  const Launch& launch = loaded.config.launch();
  if (gpus == 0) gpus = std::max(1, launch.nodes()) * launch.processes();
  if (gpus == 0) gpus = std::max(1, CountGpus());
  options->planned_gpus = gpus;
  // This machine isn't asked.
  std::vector<std::string>& sets = options->overrides;
  for (const char* set : {"launch.processes=AUTO", "launch.gpu_ids="}) {
    sets.push_back(set);
  }
  if (!fit) return absl::OkStatus();
  const Batching& batch = loaded.config.batch();
  int64_t global = batch.global_batch_size();
  if (global == 0 && batch.micro_batch_size() != Batching::AUTO) {
    global = std::max<int64_t>(1, batch.micro_batch_size()) * gpus;
  }
  for (const std::string& set :
       {std::string("batch.micro_batch_size=1"),
        absl::StrCat("batch.global_batch_size=", global),
        std::string("strategy=capstan.fsdp")}) {
    sets.push_back(set);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Plan(const PlanOptions& given) {
  RunOptions options = given.run;
  int64_t memory = 0;
  if (!given.gpu_memory.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(memory, BytesFromText(given.gpu_memory));
  } else if (given.fit) {
    return absl::InvalidArgumentError(
        "--fit needs --gpu_memory: what a GPU has, 24GiB");
  }
  if (memory > 0) SetRunDevice({true, memory});
  RunOptions preparing = options;
  if ((given.gpus > 0 || memory > 0) && !options.configs.empty()) {
    CAPSTAN_RETURN_IF_ERROR(PlanForGpus(given.gpus, given.fit, &preparing));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           Prepare(preparing));
  if (prepared == nullptr) return 0;
  std::cout << Heading(*prepared, given.fit);
  const Nccl& nccl = prepared->job.loaded.config.launch().nccl();
  const GpuRoom room = RoomOfGpu(memory, prepared->processes,
                                 {nccl.buffer_mib() << 20, nccl.max_ctas()});
  if (given.fit) return PrintFit(options, *prepared, room);
  const Plans plans = PlanAll(*prepared);
  std::cout << PlanTable(plans.planned, plans.refused);
  if (given.gpus == 0 && memory == 0) {
    std::cout << "\n"
              << HostTable(prepared->job.memory,
                           prepared->place.info.local_world_size,
                           ReadProcessMemory().anonymous, MappedBytes());
  }
  if (room.bytes > 0) {
    std::cout << "\n"
              << DeviceTable(prepared->job.memory, room, prepared->processes);
  }
  for (const std::string& note : prepared->job.notes) {
    std::cout << note << "\n";
  }
  return 0;
}

void AddPlanOptions(Flags& flags, PlanOptions* options) {
  AddRunOptions(flags, &options->run);
  flags
      .Add("--gpus", &options->gpus,
           "Plan for this many GPUs, which needn't be here; default: this "
           "machine's or, with --gpu_memory, launch.processes of them")
      .Type("NUMBER")
      .Positive();
  flags
      .Add("--gpu_memory", &options->gpu_memory,
           "What each has, 24GiB or 80GB: adds a table of a GPU")
      .Type("BYTES");
  flags.Add("--fit", &options->fit,
            "Find the strategy, micro-batch, recomputation, optimizer state, "
            "quantisation and offload that fit and cost the least time");
}

const RegisterFunction<PlanOptions> plan(
    30, "plan", "The memory and traffic that a run will need, by strategy",
    AddPlanOptions, Plan);

}  // namespace
}  // namespace capstan
