// SPDX-License-Identifier: Apache-2.0
//
// roofline: what a step costs on GPUs that needn't be here. It starts itself
// anew on stand-in devices, which trace the run's first steps.
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/machine.h"
#include "base/status.h"
#include "trainer/commands/command.h"
#include "trainer/commands/function_command.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/profile/gpu_specs.h"
#include "trainer/profile/model_flops.h"
#include "trainer/roofline/paper_run.h"
#include "trainer/roofline/report.h"

namespace capstan {
namespace {

struct RooflineOptions {
  RunOptions run;
  std::string gpu = "a100,h100,h200,b200";
  int gpus = 1;
  bool json = false;
};

absl::StatusOr<std::vector<const GpuSpecs*>> GpusOf(const std::string& keys) {
  std::vector<const GpuSpecs*> gpus;
  for (const std::string& key :
       std::vector<std::string>(absl::StrSplit(keys, ','))) {
    gpus.push_back(FindGpuSpecs(key));
    if (gpus.back() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--gpu: there is no \"", key, "\"; known are ", GpuKeys()));
    }
  }
  return gpus;
}

absl::StatusOr<std::unique_ptr<Prepared>> PrepareFor(
    const RooflineOptions& given) {
  RunOptions options = given.run;
  options.planned_gpus = given.gpus;
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Prepared> prepared,
                           Prepare(options));
  if (prepared != nullptr && prepared->job.batch.automatic) {
    return absl::InvalidArgumentError(
        "batch.micro_batch_size is AUTO, which is settled on the GPU: set it "
        "for roofline, --set batch.micro_batch_size=8");
  }
  return prepared;
}

// In the process that is traced.
absl::StatusOr<int> RunTraced(const RooflineOptions& options,
                              const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           PrepareFor(options));
  const absl::Status status =
      RunOnPaper(&prepared->job, options.gpus, folder + "/run");
  if (!status.ok()) return status;
  // Skip static destructors, as after any run on GPUs; the last step's end has
  // written the trace.
  std::cout.flush();
  _exit(0);
}

RooflineRun RunOf(const Prepared& prepared, int gpus, const TracedStep& step) {
  const TrainJob& job = prepared.job;
  RooflineRun run;
  run.name = job.loaded.config.name();
  run.gpus = gpus;
  run.strategy = job.parts.strategy_name;
  run.precision = job.parts.precision_name;
  run.parameters = ParameterCount(*job.parts.model);
  const auto length =
      static_cast<double>(job.parts.train_data->max_sequence_length());
  run.tokens = length * static_cast<double>(job.batch.micro_batch_size *
                                            job.batch.accumulation);
  const ModelFlops flops = FlopsOf(*job.parts.model, nullptr);
  if (flops.unknown.empty()) run.model_flops = flops.Of(run.tokens, length);
  run.planned_bytes = Total(job.memory.at_peak);
  run.traced_bytes = step.peak_bytes;
  return run;
}

// The words that start this command anew.
std::vector<std::string> CommandOf(const RooflineOptions& options) {
  std::vector<std::string> words = {ExecutableFolder() + "/trainer",
                                    "roofline"};
  for (const std::string& config : options.run.configs) {
    // In the same folder, with the same environment.
    words.push_back("--config=" + config);
  }
  for (const std::string& set : options.run.overrides) {
    words.push_back("--set");
    words.push_back(set);
  }
  for (const std::string& path : AllFromCaller(options.run.plugin_path)) {
    words.push_back("--plugin_path=" + path);
  }
  words.push_back(absl::StrCat("--gpus=", options.gpus));
  return words;
}

absl::StatusOr<int> Roofline(const RooflineOptions& options) {
  const std::string folder = PaperFolder();
  if (!folder.empty()) return RunTraced(options, folder);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<const GpuSpecs*> gpus,
                           GpusOf(options.gpu));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           PrepareFor(options));
  if (prepared == nullptr) return 0;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<TracedStep> steps,
      TraceRun(CommandOf(options), gpus.front()->key, options.gpus));
  const TracedStep& step = steps.back();
  const TracedStep* const before =
      steps.size() > 1 ? &steps[steps.size() - 2] : nullptr;
  const RooflineRun run = RunOf(*prepared, options.gpus, step);
  std::vector<RooflineRow> rows;
  for (const GpuSpecs* gpu : gpus) {
    const RooflineAssumptions assumed = AssumptionsFor(*gpu);
    RooflineRow row;
    row.gpu = gpu;
    row.step = Simulate(step, before, *gpu, assumed);
    row.totals = TotalsOf(step, *gpu, assumed);
    row.room_bytes = RoomOfGpu(static_cast<int64_t>(gpu->memory), options.gpus)
                         .for_tensors();
    rows.push_back(std::move(row));
  }
  std::cout << (options.json ? RooflineJson(run, rows)
                             : RooflineText(run, rows));
  return 0;
}

void AddRooflineOptions(Flags& flags, RooflineOptions* options) {
  AddRunOptions(flags, &options->run);
  flags
      .Add("--gpu", &options->gpu,
           "Kinds of GPU, by the names of data sheets: h100,b200")
      .Type("NAMES")
      .ShowDefault();
  flags.Add("--gpus", &options->gpus, "How many GPUs of one machine")
      .Positive()
      .ShowDefault();
  flags.Add("--json", &options->json, "Print JSON");
}

const RegisterFunction<RooflineOptions> roofline(
    31, "roofline",
    "Estimate a step's time on GPUs that needn't be here, never yet compared "
    "with a card",
    AddRooflineOptions, Roofline);

}  // namespace
}  // namespace capstan
