// SPDX-License-Identifier: Apache-2.0
#include "trainer/train/run_parts.h"

#include "absl/strings/str_cat.h"
#include "trainer/train/schedule.h"

namespace capstan {
namespace {

// The plugin in a slot; its errors say where the config set it.
template <typename Base>
absl::StatusOr<std::unique_ptr<Base>> CreateSlot(
    const LoadedConfig& loaded, const std::string& slot,
    const google::protobuf::Any& any, PluginCategory category,
    PluginHost& host) {
  if (any.type_url().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        slot, ": no ", CategoryName(category), " is set; write ", slot,
        " { [plugin/PACKAGE.Config] { .. } } (`trainer plugins` lists the ",
        "packages)"));
  }
  const std::string type = any.type_url().substr(any.type_url().rfind('/') + 1);
  absl::StatusOr<std::unique_ptr<Base>> made =
      host.Create<Base>(type, category, any.value());
  if (!made.ok()) return loaded.Locate(made.status(), slot);
  return made;
}

std::string PackageIn(const google::protobuf::Any& any) {
  return PackageOf(any.type_url().substr(any.type_url().rfind('/') + 1));
}

absl::Status NonNegative(const LoadedConfig& loaded, const std::string& slot,
                         const char* field, double value) {
  if (value >= 0) return absl::OkStatus();
  return loaded.Locate(
      FieldError(field, absl::StrCat("must not be negative, is ", value)),
      slot);
}

absl::Status CheckTrain(const LoadedConfig& loaded) {
  const Train& train = loaded.config.train();
  if (train.max_steps() <= 0) {
    return loaded.Locate(FieldError("max_steps", "must be greater than 0"),
                         "train");
  }
  for (const auto& [field, value] :
       {std::pair<const char*, double>{"log_every", train.log_every()},
        {"eval_every", train.eval_every()},
        {"eval_batches", train.eval_batches()},
        {"save_every", train.save_every()},
        {"keep_checkpoints", train.keep_checkpoints()},
        {"max_grad_norm", train.max_grad_norm()}}) {
    CAPSTAN_RETURN_IF_ERROR(NonNegative(loaded, "train", field, value));
  }
  return loaded.Locate(
      CheckSchedule(loaded.config.schedule(), train.max_steps()), "schedule");
}

absl::Status CrossCheck(const LoadedConfig& loaded, int world_size,
                        const RunParts& parts) {
  CAPSTAN_RETURN_IF_ERROR(CheckTrain(loaded));
  absl::StatusOr<BatchPlan> plan = PlanBatch(loaded.config.batch(), world_size);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(plan.status(), "batch"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(parts.strategy->CheckWorldSize(world_size), "strategy"));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      parts.objective->Check(*parts.model, *parts.train_data), "objective"));
  if (parts.eval_data != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
        parts.objective->Check(*parts.model, *parts.eval_data), "eval_data"));
  }
  if (!loaded.config.train().sample_prompt().empty() &&
      parts.train_data->tokenizer() == nullptr) {
    return loaded.Locate(
        FieldError("sample_prompt", "the training data has no tokenizer"),
        "train");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, int world_size) {
  BatchPlan plan;
  if (batch.micro_batch_size() < 0) {
    return FieldError("micro_batch_size", "must be greater than 0");
  }
  if (batch.global_batch_size() < 0) {
    return FieldError("global_batch_size", "must be greater than 0");
  }
  if (batch.micro_batch_size() > 0) {
    plan.micro_batch_size = batch.micro_batch_size();
  }
  const int64_t at_once = plan.micro_batch_size * world_size;
  plan.global_batch_size =
      batch.global_batch_size() > 0 ? batch.global_batch_size() : at_once;
  if (plan.global_batch_size % at_once != 0) {
    return FieldError(
        "global_batch_size",
        absl::StrCat(plan.global_batch_size,
                     " is not a multiple of micro_batch_size x ranks = ",
                     plan.micro_batch_size, " x ", world_size, " = ", at_once));
  }
  plan.accumulation = plan.global_batch_size / at_once;
  return plan;
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const LoadedConfig& loaded,
                                                   PluginHost& host) {
  return CreateSlot<Model>(loaded, "model", loaded.config.model(),
                           PluginCategory::kModel, host);
}

absl::StatusOr<RunParts> CreateRunParts(const LoadedConfig& loaded,
                                        int world_size, PluginHost& host) {
  const RunConfig& config = loaded.config;
  RunParts parts;
  CAPSTAN_ASSIGN_OR_RETURN(parts.model, CreateModel(loaded, host));
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.objective,
      CreateSlot<Objective>(loaded, "objective", config.objective(),
                            PluginCategory::kObjective, host));
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.train_data,
      CreateSlot<DatasetReader>(loaded, "train_data", config.train_data(),
                                PluginCategory::kDatasetReader, host));
  if (config.has_eval_data()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        parts.eval_data,
        CreateSlot<DatasetReader>(loaded, "eval_data", config.eval_data(),
                                  PluginCategory::kDatasetReader, host));
  } else {
    absl::StatusOr<std::unique_ptr<DatasetReader>> held_back =
        parts.train_data->Validation();
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(held_back.status(), "train_data"));
    parts.eval_data = *std::move(held_back);
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.strategy,
      CreateSlot<Strategy>(loaded, "strategy", config.strategy(),
                           PluginCategory::kStrategy, host));
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.precision,
      CreateSlot<Precision>(loaded, "precision", config.precision(),
                            PluginCategory::kPrecision, host));
  CAPSTAN_ASSIGN_OR_RETURN(
      parts.optimizer,
      CreateSlot<Optimizer>(loaded, "optimizer", config.optimizer(),
                            PluginCategory::kOptimizer, host));
  parts.strategy_name = PackageIn(config.strategy());
  parts.precision_name = PackageIn(config.precision());
  CAPSTAN_RETURN_IF_ERROR(CrossCheck(loaded, world_size, parts));
  return parts;
}

}  // namespace capstan
