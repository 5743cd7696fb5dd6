// SPDX-License-Identifier: Apache-2.0
//
// plan: what a run holds and sends under its own and every other available
// strategy.
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/commands/command.h"
#include "trainer/commands/function_command.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/console.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/run_mirror.h"

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

// What a host's memory holds for restarts (checkpoint/mirror.h); "": nothing.
std::string MirrorText(const Prepared& prepared) {
  const RunConfig& config = prepared.job.loaded.config;
  const RankInfo& info = prepared.place.info;
  if (MirrorEvery(config) == 0 || config.launch().max_restarts() == 0 ||
      !prepared.place.forks) {
    return "";
  }
  int64_t trained = 0;
  for (const ParameterSpec& spec : prepared.job.parts.model->parameters()) {
    if (spec.trainable) trained += spec.numel();
  }
  // Masters and the optimizer's state, in single precision.
  const int64_t image =
      trained * 4 *
      static_cast<int64_t>(1 +
                           prepared.job.parts.optimizer->state_names().size()) /
      prepared.processes;
  const bool hosts = info.nodes > 1;
  const int images =
      hosts ? RankInfo::kOwnMirrorFilesOfHosts + RankInfo::kHeldMirrorFiles
            : RankInfo::kOwnMirrorFiles;
  return absl::StrCat(
      "about ", ShortBytes(image * images * info.local_world_size),
      " of each host's memory, ", images, " copies for each rank",
      hosts ? absl::StrCat("; a rank sends ", ShortBytes(image),
                           " to the next host every ", MirrorEvery(config),
                           MirrorEvery(config) == 1 ? " step" : " steps")
            : "");
}

std::string Heading(const Prepared& prepared) {
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
      {"micro-batch",
       absl::StrCat(job.batch.micro_batch_size,
                    job.batch.automatic ? " (AUTO)" : "",
                    length > 0 ? absl::StrCat(" x ", length, " tokens")
                               : std::string())},
      {"accumulation", absl::StrCat(job.batch.accumulation)},
  };
  const std::string mirror = MirrorText(prepared);
  if (!mirror.empty()) rows.push_back({"mirror", mirror});
  return absl::StrCat("Capstan plan: ", job.loaded.config.name(), "\n",
                      TableText(rows), "\n");
}

absl::StatusOr<int> Plan(const RunOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           Prepare(options));
  if (prepared == nullptr) return 0;
  const Plans plans = PlanAll(*prepared);
  std::cout << Heading(*prepared) << PlanTable(plans.planned, plans.refused);
  for (const std::string& note : prepared->job.notes) {
    std::cout << note << "\n";
  }
  return 0;
}

const RegisterFunction<RunOptions> plan(
    30, "plan", "The memory and traffic that a run will need, by strategy",
    AddRunOptions, Plan);

}  // namespace
}  // namespace capstan
