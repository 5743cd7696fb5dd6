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
  absl::StatusOr<std::unique_ptr<Base>> made =
      host.Create<Base>(TypeOf(any), category, any.value());
  if (!made.ok()) return loaded.Locate(made.status(), slot);
  return made;
}

std::string PackageIn(const google::protobuf::Any& any) {
  return PackageOf(TypeOf(any));
}

absl::Status NonNegative(const LoadedConfig& loaded, const std::string& slot,
                         const char* field, double value) {
  if (value >= 0) return absl::OkStatus();
  return loaded.Locate(
      FieldError(field, absl::StrCat("must not be negative, is ", value)),
      slot);
}

absl::Status CheckBatchSize(const char* field, int64_t size) {
  constexpr int64_t kMax = int64_t{1} << 31;
  if (size >= 0 && size <= kMax) return absl::OkStatus();
  return FieldError(
      field, absl::StrCat("must be between 1 and ", kMax, ", is ", size));
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
  const bool every_n = train.activation_checkpointing() == Train::EVERY_N;
  if (every_n != (train.activation_checkpointing_n() > 0)) {
    return loaded.Locate(
        FieldError("activation_checkpointing_n",
                   every_n ? "must be greater than 0 with EVERY_N"
                           : "is for activation_checkpointing: EVERY_N only"),
        "train");
  }
  return loaded.Locate(
      CheckSchedule(loaded.config.schedule(), train.max_steps()), "schedule");
}

absl::Status CheckProfile(const LoadedConfig& loaded) {
  const int64_t last = loaded.config.train().max_steps();
  for (const int64_t step : loaded.config.profile().steps()) {
    if (step >= 1 && step <= last) continue;
    return loaded.Locate(
        FieldError("steps",
                   absl::StrCat("must be between 1 and train.max_steps = ",
                                last, ", is ", step)),
        "profile");
  }
  return absl::OkStatus();
}

absl::Status CheckSamplePrompt(const LoadedConfig& loaded,
                               const RunParts& parts) {
  const std::string& prompt = loaded.config.train().sample_prompt();
  if (prompt.empty()) return absl::OkStatus();
  const Tokenizer* tokenizer = parts.train_data->tokenizer();
  absl::Status status;
  if (tokenizer == nullptr) {
    status = FieldError("sample_prompt", "the training data has no tokenizer");
  } else if (const TokenModel* model = parts.model->token_model()) {
    const int64_t length =
        static_cast<int64_t>(tokenizer->Encode(prompt).size());
    if (length >= model->max_positions()) {
      status =
          FieldError("sample_prompt",
                     absl::StrCat("has ", length, " tokens, the model only ",
                                  model->max_positions(), " positions"));
    }
  }
  return loaded.Locate(status, "train");
}

absl::Status CrossCheck(const LoadedConfig& loaded, int world_size,
                        const RunParts& parts) {
  CAPSTAN_RETURN_IF_ERROR(CheckTrain(loaded));
  CAPSTAN_RETURN_IF_ERROR(CheckProfile(loaded));
  absl::StatusOr<BatchPlan> plan = PlanBatch(loaded.config.batch(), world_size);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(plan.status(), "batch"));
  StrategyRequest request;
  request.model = parts.model.get();
  request.precision = parts.precision->policy();
  request.world_size = world_size;
  request.accumulation = plan->accumulation;
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(parts.strategy->Check(request), "strategy"));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      parts.objective->Check(*parts.model, *parts.train_data), "objective"));
  if (parts.eval_data != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
        parts.objective->Check(*parts.model, *parts.eval_data), "eval_data"));
  }
  if (loaded.config.train().eval_every() > 0 && parts.eval_data == nullptr) {
    return loaded.Locate(
        FieldError("eval_every",
                   "there is nothing to evaluate on: set eval_data, or have "
                   "train_data hold something back"),
        "train");
  }
  return CheckSamplePrompt(loaded, parts);
}

}  // namespace

ActivationCheckpointing CheckpointingOf(const Train& train,
                                        const Model& model) {
  ActivationCheckpointing checkpointing;
  checkpointing.units = static_cast<int>(model.units().size());
  checkpointing.first_trainable = checkpointing.units;
  for (const ParameterSpec& spec : model.parameters()) {
    if (!spec.trainable) continue;
    checkpointing.first_trainable =
        std::min(checkpointing.first_trainable, spec.unit);
  }
  if (train.activation_checkpointing() == Train::EVERY_UNIT) {
    checkpointing.every = 1;
  } else if (train.activation_checkpointing() == Train::EVERY_N) {
    checkpointing.every = train.activation_checkpointing_n();
  }
  return checkpointing;
}

absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, int world_size) {
  BatchPlan plan;
  CAPSTAN_RETURN_IF_ERROR(
      CheckBatchSize("micro_batch_size", batch.micro_batch_size()));
  CAPSTAN_RETURN_IF_ERROR(
      CheckBatchSize("global_batch_size", batch.global_batch_size()));
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
