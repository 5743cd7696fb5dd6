// SPDX-License-Identifier: Apache-2.0
//
// What a step costs on GPUs that needn't be here: docs/roofline.md. It starts
// itself anew on stand-in devices, which trace the run's first steps.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/machine.h"
#include "base/status.h"
#include "testing/roofline/gpu_model.h"
#include "testing/roofline/paper_run.h"
#include "testing/roofline/report.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/profile/gpu_specs.h"
#include "trainer/profile/model_flops.h"
#include "trainer/session/micro_batch.h"

namespace capstan {
namespace {

// Those of a GB200 NVL72: no larger machine has links of its own.
constexpr int kMostGpus = 72;

struct RooflineOptions {
  RunOptions run;
  std::string gpu = "a100,h100,h200,b200";
  int gpus = 1;
  int hosts = 1;
  bool json = false;
  bool assumed = false;
};

absl::StatusOr<std::vector<const GpuSpecs*>> GpusOf(const std::string& keys) {
  if (keys.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpu names no kind of GPU; known are ", GpuKeys()));
  }
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
  return Prepare(options);
}

// What `gpu` trains with at a time: what the config says or, if that is AUTO,
// the most that is planned to fit it.
int64_t MicroBatchOf(const Prepared& prepared, const GpuSpecs& gpu, int gpus,
                     int64_t room) {
  const TrainJob& job = prepared.job;
  if (!job.batch.automatic) return job.batch.micro_batch_size;
  return PlanMicroBatch(*job.parts.strategy, MemoryRequestOf(job, gpus),
                        MicroBatchSizes(job.batch.global_batch_size, gpus),
                        room);
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

RooflineRun RunOf(const Prepared& prepared, const RooflineOptions& options) {
  const TrainJob& job = prepared.job;
  RooflineRun run;
  run.name = job.loaded.config.name();
  run.gpus = options.gpus;
  run.hosts = options.hosts;
  run.strategy = job.parts.strategy_name;
  run.precision = job.parts.precision_name;
  run.parameters = ParameterCount(*job.parts.model);
  const auto length =
      static_cast<double>(job.parts.train_data->max_sequence_length());
  run.tokens =
      length * static_cast<double>(job.batch.global_batch_size / options.gpus);
  const ModelFlops flops = FlopsOf(*job.parts.model, nullptr);
  if (flops.unknown.empty()) run.model_flops = flops.Of(run.tokens, length);
  return run;
}

// The words that start this program anew.
std::vector<std::string> CommandOf(const RooflineOptions& options,
                                   const BatchPlan& batch) {
  std::vector<std::string> words = {ExecutableFolder() + "/roofline"};
  for (const std::string& config : options.run.configs) {
    // In the same folder, with the same environment.
    words.push_back("--config=" + config);
  }
  for (const std::string& set : options.run.overrides) {
    words.push_back("--set");
    words.push_back(set);
  }
  for (const std::string& set :
       {absl::StrCat("batch.micro_batch_size=", batch.micro_batch_size),
        absl::StrCat("batch.global_batch_size=", batch.global_batch_size)}) {
    words.push_back("--set");
    words.push_back(set);
  }
  for (const std::string& path : AllFromCaller(options.run.plugin_path)) {
    words.push_back("--plugin_path=" + path);
  }
  words.push_back(absl::StrCat("--gpus=", options.gpus));
  return words;
}

// The kind of stand-in device that runs what `gpu` would: LibTorch's and our
// kernels go by its architecture. Others than these run an A100's.
const char* KindOfStandIn(const GpuSpecs& gpu) {
  for (const char* kind : {"b200", "h200", "h100"}) {
    if (absl::StrContains(gpu.key, kind)) return kind;
  }
  return "a100";
}

// Predicts for each GPU; those of one micro-batch share a trace.
absl::StatusOr<std::vector<RooflineRow>> Predict(
    const RooflineOptions& options, const Prepared& prepared,
    const std::vector<const GpuSpecs*>& gpus) {
  const TrainJob& job = prepared.job;
  std::map<std::pair<std::string, int64_t>, std::vector<TracedStep>> traces;
  std::vector<RooflineRow> rows;
  for (const GpuSpecs* gpu : gpus) {
    RooflineRow row;
    row.gpu = gpu;
    row.room_bytes = RoomOfGpu(static_cast<int64_t>(gpu->memory), options.gpus)
                         .for_tensors();
    row.micro_batch =
        MicroBatchOf(prepared, *gpu, options.gpus, row.room_bytes);
    const BatchPlan batch =
        WithMicroBatch(job.batch, row.micro_batch, options.gpus);
    MemoryRequest request = MemoryRequestOf(job, options.gpus);
    request.samples = row.micro_batch;
    request.strategy.accumulation = batch.accumulation;
    row.planned_bytes = Total(PlanMemory(*job.parts.strategy, request).at_peak);
    std::vector<TracedStep>& steps =
        traces[{KindOfStandIn(*gpu), row.micro_batch}];
    if (steps.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(
          steps, TraceRun(CommandOf(options, batch), KindOfStandIn(*gpu),
                          options.gpus));
    }
    const TracedStep& step = steps.back();
    const TracedStep* const before =
        steps.size() > 1 ? &steps[steps.size() - 2] : nullptr;
    const auto assumed = [&](Luck luck) {
      RooflineAssumptions assumptions = AssumptionsFor(*gpu, luck);
      assumptions.gpus_of_host = options.gpus / options.hosts;
      return assumptions;
    };
    const auto simulate = [&](Luck luck) {
      return Simulate(step, before, *gpu, assumed(luck));
    };
    row.step = simulate(Luck::kLikely);
    row.fastest = simulate(Luck::kGood).step;
    row.slowest = simulate(Luck::kBad).step;
    row.totals = TotalsOf(step, *gpu, assumed(Luck::kLikely));
    row.traced_bytes = step.peak_bytes;
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status CheckHosts(const RooflineOptions& options) {
  if (options.gpus % options.hosts != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--hosts is ", options.hosts, ", which doesn't divide the ",
        options.gpus, " GPUs into equal parts"));
  }
  const int of_host = options.gpus / options.hosts;
  if (of_host <= kMostGpus) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--gpus is ", options.gpus, ", ", of_host, " of a host: NVLink connects ",
      "at most ", kMostGpus, " (a GB200 NVL72); name more --hosts"));
}

absl::StatusOr<int> Roofline(const RooflineOptions& options) {
  const std::string folder = PaperFolder();
  if (!folder.empty()) return RunTraced(options, folder);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<const GpuSpecs*> gpus,
                           GpusOf(options.gpu));
  if (options.assumed) {
    for (const GpuSpecs* gpu : gpus) std::cout << AssumptionsText(*gpu) << "\n";
    return 0;
  }
  CAPSTAN_RETURN_IF_ERROR(CheckHosts(options));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           PrepareFor(options));
  if (prepared == nullptr) return 0;
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<RooflineRow> rows,
                           Predict(options, *prepared, gpus));
  const RooflineRun run = RunOf(*prepared, options);
  std::cout << (options.json ? RooflineJson(run, rows)
                             : RooflineText(run, rows));
  return 0;
}

void AddRooflineOptions(Flags& flags, RooflineOptions* options) {
  AddRunOptions(flags, &options->run);
  flags
      .Add("--gpu", &options->gpu,
           absl::StrCat("Kinds of GPU, of ", GpuKeys()).c_str())
      .Type("NAMES")
      .ShowDefault();
  flags.Add("--gpus", &options->gpus, "How many GPUs, of all hosts together")
      .Positive()
      .ShowDefault();
  flags
      .Add("--hosts", &options->hosts,
           "How many hosts, of equally many GPUs with a network port each")
      .Positive()
      .ShowDefault();
  flags.Add("--json", &options->json, "Print JSON");
  flags.Add("--assumed", &options->assumed,
            "Print the fractions of peaks and the times that are assumed of "
            "these kinds of GPU, with ranges and sources, and end");
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  capstan::FunctionCommand<capstan::RooflineOptions> roofline(
      capstan::AddRooflineOptions, capstan::Roofline);
  const int code = capstan::RunProgram(
      "roofline",
      "Estimate a step's time on GPUs that needn't be here, never yet compared "
      "with a card",
      roofline, argc, argv);
  std::fflush(nullptr);
  // Without LibTorch's destructors, as the trainer ends.
  _exit(code);
}
