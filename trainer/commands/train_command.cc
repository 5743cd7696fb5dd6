// SPDX-License-Identifier: Apache-2.0
//
// train and check: both read a config and make all its plugins; train goes on.
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "trainer/commands/commands.h"
#include "trainer/config/load_config.h"
#include "trainer/launcher/launcher.h"
#include "trainer/process_group/create.h"
#include "trainer/train/output_folder.h"
#include "trainer/train/train_loop.h"

namespace capstan {
namespace {

constexpr int kCpuProcesses = 2;

absl::StatusOr<int> ProcessCount(const LoadedConfig& loaded, int gpus) {
  const int processes = loaded.config.launch().processes();
  if (processes < 0) {
    return loaded.Locate(
        FieldError(
            "processes",
            absl::StrCat("must be AUTO or greater than 0, is ", processes)),
        "launch");
  }
  if (gpus > 0 && processes > gpus) {
    return loaded.Locate(
        FieldError("processes",
                   absl::StrCat("is ", processes, ", but this machine has ",
                                gpus, ": at most one rank a GPU")),
        "launch");
  }
  if (processes > 0) return processes;
  return gpus > 0 ? gpus : kCpuProcesses;
}

// A job with its plugins, checked for the ranks it will run on.
struct Prepared {
  std::unique_ptr<PluginHost> host;
  ConfigContext context;
  absl::optional<RankInfo> environment;  // set under torchrun
  int processes = 1;
  TrainJob job;
};

absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const RunOptions& options) {
  auto prepared = std::make_unique<Prepared>();
  prepared->host =
      std::make_unique<PluginHost>(FromCaller(options.plugin_path));
  prepared->context = DefaultConfigContext(prepared->host.get());
  if (options.configs.empty()) {
    return absl::InvalidArgumentError(
        "no --config is given; try --config=run_distributed.pbtxt, or --help");
  }
  TrainJob& job = prepared->job;
  CAPSTAN_ASSIGN_OR_RETURN(
      job.loaded,
      LoadConfig(options.configs, options.overrides, prepared->context));
  if (options.print_config) return prepared;
  job.start_seconds = options.start_seconds;
  job.workspace_folder = prepared->context.workspace_folder;
  job.gpus = CountGpus();
  if (job.gpus > 0 && !HasGpuParts()) {
    std::cerr << "this build has no GPU parts (it found no CUDA Toolkit with "
                 "NCCL): training on CPU\n";
    job.gpus = 0;
  }
  CAPSTAN_ASSIGN_OR_RETURN(prepared->environment, RankFromEnvironment());
  if (prepared->environment.has_value()) {
    prepared->processes = prepared->environment->world_size;
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(prepared->processes,
                             ProcessCount(job.loaded, job.gpus));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      job.parts,
      CreateRunParts(job.loaded, prepared->processes, *prepared->host));
  CAPSTAN_ASSIGN_OR_RETURN(
      job.batch, PlanBatch(job.loaded.config.batch(), prepared->processes));
  return prepared;
}

// Whether there is nothing more to do: an error, or the config was printed.
absl::optional<int> Done(const RunOptions& options,
                         const absl::StatusOr<std::unique_ptr<Prepared>>& p) {
  if (!p.ok()) return Fail(p.status());
  if (!options.print_config) return absl::nullopt;
  std::cout << PrintConfig((*p)->job.loaded.config);
  return 0;
}

}  // namespace

int TrainCommand(const RunOptions& options) {
  const absl::StatusOr<std::unique_ptr<Prepared>> prepared = Prepare(options);
  const absl::optional<int> done = Done(options, prepared);
  if (done.has_value()) return *done;
  TrainJob& job = (*prepared)->job;
  const RankMain train = [&job](const RankInfo& rank) {
    TrainLoop loop(&job, rank);
    return loop.Run();
  };
  if ((*prepared)->environment.has_value()) {
    const int code = RunSingleRank(*(*prepared)->environment, train);
    // NCCL's and the store's threads still run: no static destructors.
    std::cout.flush();
    std::cerr.flush();
    _exit(code);
  }
  absl::StatusOr<std::string> folder =
      PrepareOutputFolder(job.loaded.config, job.workspace_folder);
  if (!folder.ok()) return Fail(folder.status());
  job.output_dir = *std::move(folder);
  return LaunchRanks((*prepared)->processes, train);
}

int CheckCommand(const RunOptions& options) {
  const absl::StatusOr<std::unique_ptr<Prepared>> prepared = Prepare(options);
  const absl::optional<int> done = Done(options, prepared);
  if (done.has_value()) return *done;
  const TrainJob& job = (*prepared)->job;
  int64_t parameters = 0;
  for (const ParameterSpec& spec : job.parts.model->parameters()) {
    parameters += spec.numel();
  }
  std::cout << "OK: " << job.loaded.config.name() << ", " << parameters
            << " parameters, " << job.parts.train_data->size()
            << " training samples, " << job.parts.strategy_name << ", "
            << job.parts.precision_name << ", global batch "
            << job.batch.global_batch_size << " = micro "
            << job.batch.micro_batch_size << " x " << (*prepared)->processes
            << " ranks x accumulation " << job.batch.accumulation << ", "
            << job.loaded.config.train().max_steps() << " steps\n";
  return 0;
}

}  // namespace capstan
