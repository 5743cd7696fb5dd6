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
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "host/config/load_config.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/data/data_loader.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/session/held_folder.h"

namespace capstan {

namespace evaluate {
class TaskSuite;
}  // namespace evaluate

// What each evaluation measures beside eval_data, by its name.
struct EvalSetData {
  std::string name;
  std::unique_ptr<DatasetReader> reader;
};

// The plugins of a run. Creating them starts no thread and allocates nothing of
// the model's size, so it is done before ranks are forked.
struct RunParts {
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<DatasetReader> train_data;
  std::unique_ptr<DatasetReader> eval_data;  // null: none
  std::vector<EvalSetData> eval_sets;        // the config's, in its order
  std::shared_ptr<const evaluate::TaskSuite> eval_tasks;  // null: none
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<Precision> precision;
  absl::optional<Fp8Spec> fp8;  // of the precision, if the model has it
  std::unique_ptr<Optimizer> optimizer;
  // The adapter added to the model, if any.
  absl::optional<AdapterSpec> lora;
  // The device of all ranks, once they have joined.
  DeviceFacts device;
  PrecisionPolicy policy() const { return precision->PolicyOn(device); }
  // What evaluations read: eval_data, if there is one, and the sets.
  std::vector<const DatasetReader*> evaluated() const;
  // Whether an evaluation has anything to measure.
  bool evaluates() const {
    return !evaluated().empty() || eval_tasks != nullptr;
  }
  // Package names for display: "capstan.ddp".
  std::string strategy_name;
  std::string precision_name;  // with dtype, if the device decides it
  std::string optimizer_name;
};

// RunParts::precision_name.
std::string PrecisionName(const RunConfig& config, const RunParts& parts);

// A step's samples per rank with micro_batch_size: AUTO, if global_batch_size
// isn't set.
constexpr int64_t kAutoSamples = 8;

// How a step's samples are distributed.
struct BatchPlan {
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  int64_t accumulation = 1;
  // Whether micro_batch_size is AUTO; it is 1 until SettleMicroBatch.
  bool automatic = false;
  // Replicas are trained apart (Strategy::local_steps), each by neighbouring
  // ranks.
  bool replicas_apart = false;

  BatchShares Shares(const Mesh& mesh) const {
    return {micro_batch_size, global_batch_size, mesh.data, replicas_apart};
  }
};

// Whether gradients, losses and norms are summed so that their bits don't
// depend on how a run is divided: train.deterministic on CPUs.
bool SumsExactly(const Train& train, const RunParts& parts);

// The rows of an epoch: each sample is as many, and trained on in as many
// steps, as the objective's rollouts say.
int64_t EpochRows(const RunParts& parts);

// The order in which a run reads its train_data, which outlives it.
DataOrder OrderOfRun(const RunConfig& config, const RunParts& parts,
                     int64_t global_batch_size);

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
  bool forks = true;  // whether the ranks are forked here, or this is one
  int gpus = 0;       // on this machine; 0: CPU
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

// The tag (TaggedNumbers) that a set's metric `tag` has: "eval/NAME_loss".
std::string SetTag(const std::string& name, const std::string& tag);

// The names in metrics.jsonl of what a run's evaluations are sure to measure
// where their data has it: not what MetricTags without a `train` name, which is
// for `trainer eval` (StepInfo::thorough). What an objective measures besides
// (Objective::Measure) is known only afterwards.
std::vector<std::string> EvaluationMetrics(const RunParts& parts);
// Whether evaluations may measure a number of this name, which isn't one of
// those: on one of the run's data, and not by the name of one of its tasks, or
// of what only `trainer eval` measures.
bool MayBeMeasured(const std::string& name, const RunParts& parts);

// Creates all plugins for a machine with `gpus` GPUs (0: CPU). Errors name the
// config location. CheckRun checks that they fit each other. Unless the GPUs
// are `here`, doesn't ask the driver: they have compute capability 8.0 and
// CurrentRunDevice's memory. The data is read with the tokenizer of the
// checkpoint `resumed_from`, unless that is "".
absl::StatusOr<RunParts> CreateRunParts(const LoadedConfig& loaded, int gpus,
                                        PluginHost& host, bool here = true,
                                        const std::string& resumed_from = "");

// How the curve of a run may differ from that of others with its config and
// data: by its strategy, by its objective, which may be null, or by both.
// Unset: not at all.
absl::optional<OwnCurve> OwnCurveOf(const Strategy& strategy,
                                    const Objective* objective);

int64_t ParameterCount(const Model& model);

// Returns which units of the model are recomputed in backward.
ActivationCheckpointing CheckpointingOf(const Train& train, const Model& model);

// The ranks of a run as a grid, of which those along kSequence share
// micro-batches (train.sequence_parallel). A strategy may divide the others.
Mesh MeshOf(const Train& train, int world_size);
// Whether the ranks can be such a grid.
absl::Status CheckMesh(const Train& train, int world_size);

// Resolves micro-batch, global batch and accumulation. mesh.data micro-batches
// are computed at a time.
absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, const Mesh& mesh);
// Returns `plan` with another micro-batch, which divides the global batch
// evenly; `at_once` (Mesh::data) of them are computed at a time.
BatchPlan WithMicroBatch(BatchPlan plan, int64_t micro_batch_size, int at_once);
// Checks that all ranks have equally many micro-batches, which `why` needs.
// Errors name the field.
absl::Status CheckEqualShares(const BatchPlan& plan, const Mesh& mesh,
                              absl::string_view why);
// How many ranks have nothing to do in a step's last micro-step; "": none.
std::string IdleRanksNote(const BatchPlan& plan, const Mesh& mesh);

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

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_PARTS_H_
