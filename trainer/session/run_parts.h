// SPDX-License-Identifier: Apache-2.0
//
// A run's plugins, created from its config, and its settings resolved for this
// machine.
#ifndef CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "host/config/load_config.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/strategy.h"
#include "trainer/data/data_loader.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/session/held_folder.h"

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
  absl::optional<AdapterSpec> lora;
  // The device of all ranks, once they have joined.
  DeviceFacts device;
  PrecisionPolicy policy() const { return precision->PolicyOn(device); }
  // Package names for display: "capstan.ddp".
  std::string strategy_name;
  std::string precision_name;  // with dtype, if the device decides it
  std::string optimizer_name;
};

// RunParts::precision_name.
std::string PrecisionName(const RunConfig& config, const RunParts& parts);

// How a step's samples are distributed.
struct BatchPlan {
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  int64_t accumulation = 1;
  // Whether micro_batch_size is AUTO; it is 1 until SettleMicroBatch.
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
  // The run's folder; empty under a launcher and on several hosts, where rank 0
  // chooses it.
  HeldFolder folder;
  std::string workspace_folder;
  // The words that started the run (CommandWords); empty: unknown.
  std::vector<std::string> command;
  int gpus = 0;                    // on this machine; 0: CPU
  std::vector<std::string> notes;  // shown below the banner
  // The number of notes from before the ranks were started; a restart shows
  // only the others.
  size_t known_notes = 0;
  // CLOCK_BOOTTIME at which the run's first process was executed.
  double start_seconds = 0.0;
};

// The memory of the smallest GPU, of those that are planned for or else of
// those that are here; 0: unknown.
int64_t LeastGpuMemory();

// Creates the collector in the config's `collect`; null if there is none.
absl::StatusOr<std::unique_ptr<Collector>> CreateCollector(
    const LoadedConfig& loaded, PluginHost& host);

// The folders in which the tokenizer of the config's model is looked for: the
// adapter's and the model's that it starts from, unless the config replaces
// their tokenizer; then `checkpoint`, from which the run is resumed ("": none).
std::vector<std::string> TokenizerFolders(const RunConfig& config,
                                          const std::string& checkpoint = "");

// Creates all plugins for a machine with `gpus` GPUs (0: CPU). Errors name the
// config location. CheckRun checks that they fit each other. Unless the GPUs
// are `here`, doesn't ask the driver: they have compute capability 8.0 and
// CurrentRunDevice's memory. The data is read with the tokenizer of the
// checkpoint `resumed_from`, unless that is "".
absl::StatusOr<RunParts> CreateRunParts(const LoadedConfig& loaded, int gpus,
                                        PluginHost& host, bool here = true,
                                        const std::string& resumed_from = "");

int64_t ParameterCount(const Model& model);

// Returns which units of the model are recomputed in backward.
ActivationCheckpointing CheckpointingOf(const Train& train, const Model& model);

// Resolves micro-batch, global batch and accumulation for `world_size` ranks.
absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, int world_size);
// Returns `plan` with another micro-batch, which divides the global batch
// evenly.
BatchPlan WithMicroBatch(BatchPlan plan, int64_t micro_batch_size,
                         int world_size);

// Returns the device of a run on a machine with `gpus` GPUs (0: its CPU), as
// far as `precision` needs to know it.
DeviceFacts DeviceOf(const Precision& precision, int gpus);

// Returns a warning if the run's dtype gains nothing on its device (or this
// processor), with what to set instead; otherwise "".
std::string SlowPrecisionNote(const Precision& precision,
                              const std::string& package,
                              const DeviceFacts& device);

// Returns warnings about settings of `train` that only affect GPUs and have no
// effect here.
std::vector<std::string> GpuSettingNotes(const Train& train,
                                         const DeviceFacts& device);

// Checks the config's numbers, and that its plugins fit each other and
// `world_size` ranks; returns how samples are distributed over them. Errors
// name the config location.
absl::StatusOr<BatchPlan> CheckRun(const LoadedConfig& loaded, int world_size,
                                   const RunParts& parts);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
