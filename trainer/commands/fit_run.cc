// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/fit_run.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "host/config/create_slot.h"
#include "host/config/load_config.h"
#include "inference/load/create_model.h"
#include "kernels/context/recompute.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/strategy.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/new_tokens.h"

namespace capstan {
namespace {

// The plugins of a choice; those of another are made anew.
struct ChosenParts {
  std::unique_ptr<Model> model;  // null: the prepared one
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<Optimizer> optimizer;
};

absl::StatusOr<ChosenParts> MakeChosen(const RunOptions& options,
                                       const FitChoice& choice,
                                       const Prepared& prepared) {
  std::vector<std::string> overrides = options.overrides;
  for (std::string& set : choice.Overrides()) {
    overrides.push_back(std::move(set));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      LoadedConfig loaded,
      LoadConfig(options.configs, overrides, prepared.context));
  PluginHost& host = *prepared.host;
  CAPSTAN_RETURN_IF_ERROR(SettleNewTokens(&loaded, host));
  ChosenParts parts;
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.strategy,
      CreateSlot<Strategy>(loaded, "strategy", loaded.config.strategy(), host));
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.optimizer, CreateSlot<Optimizer>(loaded, "optimizer",
                                             loaded.config.optimizer(), host));
  if (choice.quantize) {
    CAPSTAN_ASSIGN_OR_RETURN(parts.model, CreateModel(loaded, host));
  }
  return parts;
}

FitLimits LimitsOf(const Prepared& prepared) {
  const TrainJob& job = prepared.job;
  const RunConfig& config = job.loaded.config;
  FitLimits limits;
  limits.gpus = prepared.processes;
  limits.global_batch = job.batch.global_batch_size;
  for (const int64_t size :
       MicroBatchSizes(job.batch.global_batch_size,
                       MeshOf(config.train(), prepared.processes).data)) {
    if (size <= 64) limits.micro_batches.push_back(size);
  }
  limits.adamw = TypeOf(config.optimizer()) == "capstan.adamw.Config";
  const Model& model = *job.parts.model;
  int64_t all = 0, trained = 0;
  bool packed = false;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    all += spec.numel();
    if (spec.trainable) trained += spec.numel();
    packed = packed || model.PackedBytes(static_cast<int>(i)) > 0;
  }
  // One that is packed already stays as it is.
  limits.quantizable = config.adapter().has_lora() && !packed;
  limits.few_trained = trained < all / 20;
  return limits;
}

// Plans for the strategy of `config_type`, with default settings.
OtherPlan PlanOther(const std::string& config_type, MemoryRequest request,
                    PluginHost& host) {
  OtherPlan other;
  other.package = PackageOf(config_type);
  const absl::StatusOr<std::unique_ptr<Strategy>> strategy =
      host.Create<Strategy>(config_type, PluginCategory::kStrategy, "");
  absl::Status status = strategy.status();
  if (status.ok()) status = (*strategy)->Check(request.strategy);
  if (!status.ok()) {
    other.plan = status;
    return other;
  }
  request.local_steps = (*strategy)->local_steps();
  other.own_curve = (*strategy)->own_curve().has_value();
  other.plan = PlanMemory(**strategy, request);
  return other;
}

}  // namespace

std::vector<OtherPlan> PlansOfOthers(const Prepared& prepared) {
  const TrainJob& job = prepared.job;
  const MemoryRequest request = MemoryRequestOf(job, prepared.processes);
  std::vector<OtherPlan> others;
  for (const std::string& package : prepared.host->Available()) {
    // The strategies are built with the trainer.
    if (!prepared.host->IsBuilt(package)) continue;
    const absl::StatusOr<const LoadedPlugin*> plugin =
        prepared.host->Load(absl::StrCat(package, ".Config"));
    // Broken plugins are left to `trainer plugins`.
    if (plugin.ok() &&
        (*plugin)->descriptor->category == PluginCategory::kStrategy &&
        (*plugin)->config_type != TypeOf(job.loaded.config.strategy())) {
      others.push_back(
          PlanOther((*plugin)->config_type, request, *prepared.host));
    }
  }
  return others;
}

std::string StrategyThatFits(const Prepared& prepared, int64_t room) {
  std::string best;
  int64_t least = 0;
  for (const OtherPlan& other : PlansOfOthers(prepared)) {
    if (other.own_curve || !other.plan.ok() ||
        Total(other.plan->at_peak) > room ||
        (!best.empty() && other.plan->sent >= least)) {
      continue;
    }
    best = other.package;
    least = other.plan->sent;
  }
  return best;
}

absl::StatusOr<Fitted> FitRun(const RunOptions& options,
                              const Prepared& prepared, int64_t room,
                              bool* fits) {
  const TrainJob& job = prepared.job;
  std::map<std::string, absl::StatusOr<ChosenParts>> made;
  absl::optional<Fitted> least;
  for (FitChoice& choice : FitChoices(LimitsOf(prepared))) {
    const std::string key = absl::StrJoin(choice.Overrides(), " ");
    auto found = made.find(key);
    if (found == made.end()) {
      found = made.emplace(key, MakeChosen(options, choice, prepared)).first;
    }
    // A model may not be able to quantise.
    if (!found->second.ok() && choice.quantize) continue;
    CAPSTAN_RETURN_IF_ERROR(found->second.status());
    const ChosenParts& parts = *found->second;
    MemoryRequest request = MemoryRequestOf(job, prepared.processes);
    if (parts.model != nullptr) request.strategy.model = parts.model.get();
    request.optimizer = request.strategy.optimizer = parts.optimizer.get();
    request.samples = choice.micro_batch;
    request.strategy.accumulation =
        WithMicroBatch(
            job.batch, choice.micro_batch,
            MeshOf(job.loaded.config.train(), prepared.processes).data)
            .accumulation;
    request.checkpointing.every = choice.checkpoint_every;
    SetRecomputesMlp(choice.recompute_mlp);
    request.checkpointing.offload = choice.offload_activations;
    request.paged_state = choice.paged_state;
    // Without a GPU what is offloaded would stay where it is.
    if (!request.on_gpu &&
        (choice.offload_activations || !choice.strategy_sets.empty())) {
      continue;
    }
    if (!parts.strategy->Check(request.strategy).ok()) continue;
    Fitted fitted = {std::move(choice), PlanMemory(*parts.strategy, request)};
    if (!fitted.plan.activations_known) {
      return absl::FailedPreconditionError(
          "--fit: this model doesn't tell what its activations take");
    }
    *fits = Total(fitted.plan.at_peak) <= room;
    if (*fits) return fitted;
    if (!least.has_value() ||
        Total(fitted.plan.at_peak) < Total(least->plan.at_peak)) {
      least = std::move(fitted);
    }
  }
  if (!least.has_value()) {
    return absl::FailedPreconditionError(
        "--fit: no strategy can run this config on these GPUs");
  }
  return *std::move(least);
}

}  // namespace capstan
