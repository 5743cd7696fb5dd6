// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/places.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/gpus.h"
#include "base/machine.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "kernels/context/run_device.h"
#include "trainer/commands/prepare.h"
#include "trainer/profile/gpu_specs.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/run_parts.h"

namespace capstan::fit {

absl::StatusOr<Launching> ReadLaunch(const RunOptions& options) {
  PluginHost host(AllFromCaller(options.plugin_path));
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           LoadConfig(options.configs, options.overrides,
                                      DefaultConfigContext(&host)));
  Launching launching;
  launching.processes = loaded.config.launch().processes();
  launching.global_batch = loaded.config.batch().global_batch_size();
  const int64_t micro = loaded.config.batch().micro_batch_size();
  launching.micro_batch =
      micro == Batching::AUTO ? kAutoSamples : std::max<int64_t>(1, micro);
  launching.train = loaded.config.train();
  return launching;
}

absl::StatusOr<Machine> MachineOf(const Question& question,
                                  const Launching& launching) {
  Machine machine;
  for (const std::string& path : question.machines) {
    CAPSTAN_RETURN_IF_ERROR(ReadMachine(FromCaller(path), &machine));
  }
  if (machine.here) {
    CAPSTAN_ASSIGN_OR_RETURN(const int gpus, GpusOfRun());
    machine.memory = AvailableHostMemory();
    if (gpus > 0) {
      machine.gpu = Gpus().gpus[0].name;
      const GpuSpecs* const specs = FindGpuSpecs(machine.gpu);
      if (specs != nullptr) machine.gpu = specs->key;
      machine.gpu_memory = FreeGpuMemory();
    }
  }
  if (machine.ranks == 0) machine.ranks = launching.processes;
  if (machine.ranks == 0) {
    CAPSTAN_ASSIGN_OR_RETURN(const CommandHost::Ranks ranks, RanksOfRun());
    machine.ranks = machine.here ? ranks.count : 1;
  }
  if (machine.hosts > 1 && machine.gbit == 0.0 && machine.sends.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        machine.name,
        ": link is missing: write \"link\": {\"gbit\": 10, "
        "\"latency_us\": 30}, or give what `trainer doctor --json` has "
        "measured on the hosts"));
  }
  return machine;
}

Places PlacesOf(const Machine& machine, const Launching& launching) {
  std::set<std::pair<int, int>> places;
  for (int hosts = 1; hosts < machine.hosts; hosts *= 2) {
    places.insert({hosts, machine.ranks});
  }
  places.insert({machine.hosts, machine.ranks});
  if (machine.here && launching.processes == 0) {
    const int cores = machine.gpu.empty() ? AvailableCores() : 1;
    for (int ranks = 1; ranks <= cores; ranks *= 2) places.insert({1, ranks});
    for (int ranks = 1; ranks <= cores; ++ranks) {
      if (cores % ranks == 0) places.insert({1, ranks});
    }
  }
  return {places.begin(), places.end()};
}

absl::StatusOr<std::unique_ptr<Prepared>> PrepareFor(const Question& question,
                                                     const Machine& machine,
                                                     const Launching& launching,
                                                     int64_t global_batch) {
  // On the most ranks that can share the global batch.
  int hosts = machine.hosts;
  int ranks = machine.ranks;
  const auto shares = [&](int all) {
    const int data = MeshOf(launching.train, all).data;
    return CheckMesh(launching.train, all).ok() && data > 0 &&
           global_batch % data == 0;
  };
  if (!shares(hosts * ranks)) {
    int most = 0;
    for (const auto& [some, of_each] : PlacesOf(machine, launching)) {
      if (some * of_each <= most || !shares(some * of_each)) continue;
      most = some * of_each;
      hosts = some;
      ranks = of_each;
    }
  }
  RunOptions options = question.run;
  const bool on_gpu = !machine.gpu.empty();
  if (!machine.here) {
    if (on_gpu) {
      SetRunDevice({true, machine.gpu_memory});
      options.planned_gpus = hosts * ranks;
      options.overrides.push_back("launch.gpu_ids=");
      options.overrides.push_back("launch.processes=AUTO");
    } else {
      options.overrides.push_back(absl::StrCat("launch.processes=", ranks));
    }
    options.overrides.push_back("launch.nodes=0");
    options.overrides.push_back("launch.rendezvous=");
  } else if (ranks != machine.ranks) {
    options.overrides.push_back(absl::StrCat("launch.processes=", ranks));
  }
  options.overrides.push_back("batch.micro_batch_size=1");
  options.overrides.push_back(
      absl::StrCat("batch.global_batch_size=", global_batch));
  return Prepare(options);
}

}  // namespace capstan::fit
