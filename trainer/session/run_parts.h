// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_

#include <memory>
#include <string>

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
#include "trainer/session/strategy_runner.h"

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

// Makes the config's model, with its adapter; errors say where it was set.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const LoadedConfig& loaded,
                                                   PluginHost& host);

// The collector in the config's `collect`; null if there is none.
absl::StatusOr<std::unique_ptr<Collector>> CreateCollector(
    const LoadedConfig& loaded, PluginHost& host);

// The adapter that the config asks for.
absl::StatusOr<absl::optional<LoraSpec>> AdapterOf(const LoadedConfig& loaded);

// Makes all plugins, and checks that they fit each other, `world_size` ranks,
// and this machine's GPUs (0: CPU). Errors name the place in the config.
absl::StatusOr<RunParts> CreateRunParts(const LoadedConfig& loaded,
                                        int world_size, int gpus,
                                        PluginHost& host);

// Which units of the model are recomputed in backward.
ActivationCheckpointing CheckpointingOf(const Train& train, const Model& model);

// Micro-batch, global batch and accumulation for `world_size` ranks.
absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, int world_size);
// The same with another micro-batch, which cuts the global batch evenly.
BatchPlan WithMicroBatch(BatchPlan plan, int64_t micro_batch_size,
                         int world_size);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
