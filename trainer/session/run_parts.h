// SPDX-License-Identifier: Apache-2.0
//
// A run's plugins, made from its config, and what they come to on this machine.
#ifndef CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
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
#include "trainer/memory/activation_checkpointing.h"
#include "trainer/memory/memory_plan.h"

namespace capstan {

// The plugins of a run. Making them starts no thread and allocates nothing of
// the model's size, so it is done before ranks are forked.
struct RunParts {
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<DatasetReader> train_data;
  std::unique_ptr<DatasetReader> eval_data;  // null: no evaluation
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<Precision> precision;
  std::unique_ptr<Optimizer> optimizer;
  // What has been added to the model, if anything.
  absl::optional<LoraSpec> lora;
  // Of the run: of all ranks, once they have met.
  DeviceFacts device;
  PrecisionPolicy policy() const { return precision->PolicyOn(device); }
  // Package names, for people: "capstan.ddp".
  std::string strategy_name;
  std::string precision_name;  // with the dtype, where the device decides on it
  std::string optimizer_name;
};

// As RunParts::precision_name has it.
std::string PrecisionName(const RunConfig& config, const RunParts& parts);

// How a step's samples are spread.
struct BatchPlan {
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  int64_t accumulation = 1;
  // Whether micro_batch_size is AUTO: 1 until it is settled.
  bool automatic = false;
};

// A run that is ready to start; the same in all ranks.
struct TrainJob {
  LoadedConfig loaded;
  RunParts parts;
  BatchPlan batch;
  // Samples of an evaluation's forward; 0: as in training. A resumed run that
  // trains in smaller micro-batches than before still evaluates the same ones.
  int64_t evaluation_batch = 0;
  MemoryPlan memory;
  // Of the run; empty under torchrun, where rank 0 settles it.
  std::string output_dir;
  std::string workspace_folder;
  // The words that started the run (CommandWords); empty: not known.
  std::vector<std::string> command;
  int gpus = 0;                    // of this machine; 0: CPU
  std::vector<std::string> notes;  // for the user, under the banner
  // When the run's first process was executed, on CLOCK_BOOTTIME.
  double start_seconds = 0.0;
};

// Makes the config's model, with the adapter that the config asks for, which
// `lora` (if it isn't null) gets; errors say where it was set.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(
    const LoadedConfig& loaded, PluginHost& host,
    absl::optional<LoraSpec>* lora = nullptr);

// The collector in the config's `collect`; null if there is none.
absl::StatusOr<std::unique_ptr<Collector>> CreateCollector(
    const LoadedConfig& loaded, PluginHost& host);

// Makes all plugins, for this machine's `gpus` GPUs (0: CPU). Errors name the
// place in the config. Whether they fit each other is CheckRun's to say
// (check_run.h).
absl::StatusOr<RunParts> CreateRunParts(const LoadedConfig& loaded, int gpus,
                                        PluginHost& host);

int64_t ParameterCount(const Model& model);

// Which units of the model are recomputed in backward.
ActivationCheckpointing CheckpointingOf(const Train& train, const Model& model);

// Micro-batch, global batch and accumulation for `world_size` ranks.
absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, int world_size);
// The same with another micro-batch, which cuts the global batch evenly.
BatchPlan WithMicroBatch(BatchPlan plan, int64_t micro_batch_size,
                         int world_size);

// The device of a run on this machine's `gpus` GPUs, or on its CPU if there are
// none, as far as `precision` asks.
DeviceFacts DeviceOf(const Precision& precision, int gpus);

// "float32", as PyTorch says.
std::string DtypeName(c10::ScalarType dtype);

// Whether the device computes in `dtype` more slowly than in float32. CPUs do
// in the 16-bit types: our kernels are float32's (kernels/), and LibTorch's
// convert each operand.
bool IsSlow(c10::ScalarType dtype, const DeviceFacts& device);

// For the user, where the run computes in a dtype that its device is slow in:
// that it does, and what to set instead; else "".
std::string SlowPrecisionNote(const Precision& precision,
                              const std::string& package,
                              const DeviceFacts& device);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
