// SPDX-License-Identifier: Apache-2.0
//
// plan: what a run holds and sends under its own and every other available
// strategy.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/error_code.h"
#include "base/gpus.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "kernels/context/run_device.h"
#include "plugins/sdk/model.h"
#include "trainer/commands/command.h"
#include "trainer/commands/fit_run.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/console.h"
#include "trainer/session/micro_batch.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// The run's strategy first, then the others by name.
struct Plans {
  std::vector<PlannedStrategy> planned;
  std::vector<RefusedStrategy> refused;
};

Plans PlanAll(const Prepared& prepared) {
  const TrainJob& job = prepared.job;
  Plans plans;
  plans.planned.push_back({job.parts.strategy_name, "this run", job.memory});
  for (const OtherPlan& other : PlansOfOthers(prepared)) {
    if (other.plan.ok()) {
      plans.planned.push_back({other.package, "defaults", *other.plan});
    } else {
      plans.refused.push_back(
          {other.package, std::string(other.plan.status().message())});
    }
  }
  return plans;
}

// What a rank holds under a strategy, in bytes.
Json PlanJson(const std::string& strategy, const std::string& settings,
              const MemoryPlan& plan) {
  Json at_peak = Json::object();
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (plan.Knows(category)) {
      at_peak[MemoryCategoryName(category)] = plan.at_peak[i];
    }
  }
  Json json = {{"strategy", strategy},
               {"settings", settings},
               {"at_peak", at_peak},
               {"total", Total(plan.at_peak)},
               {"evaluation", plan.evaluation},
               {"host", plan.host},
               {"file", plan.file},
               {"snapshot", plan.snapshot},
               {"mirror", plan.mirror},
               {"sent", plan.sent}};
  if (plan.process.has_value()) json["process"] = *plan.process;
  return json;
}

// All that is printed, for programs.
Json PlanAsJson(const Prepared& prepared, const GpuRoom& room) {
  const TrainJob& job = prepared.job;
  Json strategies = Json::array();
  const Plans plans = PlanAll(prepared);
  for (const PlannedStrategy& one : plans.planned) {
    strategies.push_back(PlanJson(one.name, one.settings, one.plan));
  }
  for (const RefusedStrategy& one : plans.refused) {
    strategies.push_back({{"strategy", one.name}, {"refused", one.reason}});
  }
  Json json = {{"name", job.loaded.config.name()},
               {"ranks", prepared.processes},
               {"device", job.gpus > 0 ? "GPU" : "CPU"},
               {"precision", job.parts.precision_name},
               {"parameters", ParameterCount(*job.parts.model)},
               {"micro_batch_size", job.batch.micro_batch_size},
               {"global_batch_size", job.batch.global_batch_size},
               {"accumulation", job.batch.accumulation},
               {"sequence_length", LongestRow(job)},
               {"strategies", strategies},
               {"notes", job.notes}};
  if (room.bytes > 0) json["room_of_gpu"] = room.for_tensors();
  if (job.gpus == 0) json["available"] = AvailableHostMemory();
  return json;
}

// `fit`: the micro-batch is still to be chosen.
std::string Heading(const Prepared& prepared, bool fit) {
  const TrainJob& job = prepared.job;
  const int64_t length = LongestRow(job);
  std::vector<std::pair<std::string, std::string>> rows = {
      {"ranks",
       absl::StrCat(prepared.processes, job.gpus > 0 ? " x GPU" : " x CPU")},
      {"precision", job.parts.precision_name},
      {"parameters",
       ShortCount(static_cast<double>(ParameterCount(*job.parts.model)))},
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

absl::StatusOr<int> PrintFit(const RunOptions& options,
                             const Prepared& prepared, const GpuRoom& room) {
  bool fits = false;
  CAPSTAN_ASSIGN_OR_RETURN(
      const Fitted fitted,
      FitRun(options, prepared, room.for_tensors(), &fits));
  const std::string table = DeviceTable(fitted.plan, room, prepared.processes);
  if (options.json) {
    Json json = PlanJson(fitted.choice.strategy, "fit", fitted.plan);
    json["fits"] = fits;
    json["config"] = fitted.choice.ConfigText();
    json["room_of_gpu"] = room.for_tensors();
    std::cout << JsonText(json, 2) << "\n";
    return fits ? 0 : 1;
  }
  if (!fits) {
    std::cout << "Even with\n" << fitted.choice.ConfigText() << "\n" << table;
    return WithCode(
        absl::ResourceExhaustedError(absl::StrCat(
            "nothing fits: ",
            ShortBytes(Total(fitted.plan.at_peak) - room.for_tensors()),
            " are missing on each GPU; take more or larger GPUs, shorter "
            "sequences, an adapter (adapter { lora {} }) or a smaller model")),
        "memory/plan");
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
  if (global == 0) {
    const int64_t micro = batch.micro_batch_size();
    global = gpus * (micro == Batching::AUTO ? kAutoSamples
                                             : std::max<int64_t>(1, micro));
  }
  for (const std::string& set :
       {std::string("batch.micro_batch_size=1"),
        absl::StrCat("batch.global_batch_size=", global),
        std::string("strategy=capstan.fsdp")}) {
    sets.push_back(set);
  }
  return absl::OkStatus();
}

// `status`, an error of `preparing`, without the --set that the command has
// added behind the user's first `given`.
absl::Status WithoutAddedSets(const absl::Status& status, size_t given,
                              const RunOptions& preparing) {
  std::string message(status.message());
  for (size_t i = given; i < preparing.overrides.size(); ++i) {
    const std::string set = absl::StrCat("--set ", preparing.overrides[i]);
    absl::StrReplaceAll({{absl::StrCat(set, ": "), ""}, {set, "plan"}},
                        &message);
  }
  return WithMessage(status, message);
}

absl::StatusOr<int> Plan(const PlanOptions& given) {
  RunOptions options = given.run;
  int64_t memory = 0;
  if (!given.gpu_memory.empty()) {
    const absl::StatusOr<int64_t> bytes = BytesFromText(given.gpu_memory);
    if (!bytes.ok()) return Annotate(bytes.status(), "--gpu_memory");
    memory = *bytes;
  } else if (given.fit) {
    return absl::InvalidArgumentError(
        "--fit needs --gpu_memory: what a GPU has, 24GiB");
  }
  if (memory > 0) SetRunDevice({true, memory});
  RunOptions preparing = options;
  if ((given.gpus > 0 || memory > 0) && !options.configs.empty()) {
    CAPSTAN_RETURN_IF_ERROR(PlanForGpus(given.gpus, given.fit, &preparing));
  }
  const absl::StatusOr<std::unique_ptr<Prepared>> made = Prepare(preparing);
  if (!made.ok()) {
    return WithoutAddedSets(made.status(), options.overrides.size(), preparing);
  }
  const std::unique_ptr<Prepared>& prepared = *made;
  if (prepared == nullptr) return 0;
  if (!options.json) std::cout << Heading(*prepared, given.fit);
  const Nccl& nccl = prepared->job.loaded.config.launch().nccl();
  const GpuRoom room = RoomOfGpu(memory, prepared->processes,
                                 {nccl.buffer_mib() << 20, nccl.max_ctas()});
  if (given.fit) return PrintFit(options, *prepared, room);
  if (options.json) {
    std::cout << JsonText(PlanAsJson(*prepared, room), 2) << "\n";
    return 0;
  }
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
  flags.Add("--json", &options->run.json, "Print JSON, for programs");
}

const RegisterFunction<PlanOptions> plan("plan", AddPlanOptions, Plan);

}  // namespace
}  // namespace capstan
