// SPDX-License-Identifier: Apache-2.0
//
// A run's plugins, created from its config, and what it resolves to on this
// machine.
#ifndef CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/strategy.h"
#include "trainer/config/load_config.h"
#include "trainer/data/data_loader.h"
#include "trainer/memory/memory_plan.h"

namespace capstan {

// The plugins of a run. Creating them starts no thread and allocates nothing of
// the model's size, so it is done before ranks are forked.
struct RunParts {
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<DatasetReader> train_data;
  std::unique_ptr<DatasetReader> eval_data;  // null: no evaluation
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<Precision> precision;
  std::unique_ptr<Optimizer> optimizer;
  // The adapter added to the model, if any.
  absl::optional<LoraSpec> lora;
  // Of all ranks, once they have joined.
  DeviceFacts device;
  PrecisionPolicy policy() const { return precision->PolicyOn(device); }
  // Package names for display: "capstan.ddp".
  std::string strategy_name;
  std::string precision_name;  // with dtype, if the device decides it
  std::string optimizer_name;
  // The minor version of the plugin API that the model was built for.
  int model_minor = kPluginApiMinor;
};

// RunParts::precision_name.
std::string PrecisionName(const RunConfig& config, const RunParts& parts);

// How a step's samples are distributed.
struct BatchPlan {
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  int64_t accumulation = 1;
  // micro_batch_size is AUTO; 1 until it is settled.
  bool automatic = false;
  MicroBatchOrder order = MicroBatchOrder::kByMicroStep;
};

// Whether gradients, losses and norms are summed so that their bits don't
// depend on how a run is divided: train.deterministic on CPUs.
bool SumsAlongTree(const Train& train, const RunParts& parts);

// A run that is ready to start; identical on all ranks.
struct TrainJob {
  LoadedConfig loaded;
  RunParts parts;
  BatchPlan batch;
  // Samples per forward in evaluation; 0: as in training. Keeps the evaluated
  // samples the same when a resumed run trains with smaller micro-batches.
  int64_t evaluation_batch = 0;
  MemoryPlan memory;
  // The run's; empty under a launcher and on several hosts: rank 0 decides.
  std::string output_dir;
  std::string workspace_folder;
  // The words that started the run (CommandWords); empty: unknown.
  std::vector<std::string> command;
  int gpus = 0;                    // on this machine; 0: CPU
  std::vector<std::string> notes;  // shown below the banner
  // Of these, how many are from before the ranks were started: a restart shows
  // only the others.
  size_t known_notes = 0;
  // CLOCK_BOOTTIME at which the run's first process was executed.
  double start_seconds = 0.0;
};

// Creates the config's model with the adapter that the config asks for,
// returned in `lora` if not null. Errors name the config location.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(
    const LoadedConfig& loaded, PluginHost& host,
    absl::optional<LoraSpec>* lora = nullptr);

// The collector in the config's `collect`; null if there is none.
absl::StatusOr<std::unique_ptr<Collector>> CreateCollector(
    const LoadedConfig& loaded, PluginHost& host);

// Creates all plugins for a machine with `gpus` GPUs (0: CPU). Errors name the
// config location. CheckRun checks that they fit each other. Unless the GPUs
// are `here`, no driver is asked for them: they have compute capability 8.0,
// and the memory that CurrentRunDevice says.
absl::StatusOr<RunParts> CreateRunParts(const LoadedConfig& loaded, int gpus,
                                        PluginHost& host, bool here = true);

int64_t ParameterCount(const Model& model);

// Which units of the model are recomputed in backward.
ActivationCheckpointing CheckpointingOf(const Train& train, const Model& model);

// Micro-batch, global batch and accumulation for `world_size` ranks.
absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, int world_size);
// `plan` with another micro-batch, which divides the global batch evenly.
BatchPlan WithMicroBatch(BatchPlan plan, int64_t micro_batch_size,
                         int world_size);

// The device of a run on a machine with `gpus` GPUs (0: its CPU), as far as
// `precision` needs to know.
DeviceFacts DeviceOf(const Precision& precision, int gpus);

// A warning that the run computes in a dtype that gains nothing on its device
// (or this processor), with what to set instead; else "".
std::string SlowPrecisionNote(const Precision& precision,
                              const std::string& package,
                              const DeviceFacts& device);

// Warnings that settings of `train` that are for GPUs have no effect here.
std::vector<std::string> GpuSettingNotes(const Train& train,
                                         const DeviceFacts& device);

// Checks the config's numbers, and that its plugins fit each other and
// `world_size` ranks; returns how samples are distributed over them. Errors
// name the config location.
absl::StatusOr<BatchPlan> CheckRun(const LoadedConfig& loaded, int world_size,
                                   const RunParts& parts);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
