// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/check_run.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

absl::Status NonNegative(const LoadedConfig& loaded, const std::string& slot,
                         const char* field, double value) {
  if (value >= 0) return absl::OkStatus();
  return loaded.Locate(
      FieldError(field, absl::StrCat("must not be negative, is ", value)),
      slot);
}

// Checks what doesn't depend on the data.
absl::Status CheckTrain(const LoadedConfig& loaded) {
  const Train& train = loaded.config.train();
  if (train.max_steps() <= 0 && train.max_epochs() <= 0) {
    return loaded.Locate(
        train.has_max_epochs()
            ? FieldError("max_epochs",
                         "must be greater than 0 (or set max_steps)")
            : FieldError("max_steps",
                         "must be greater than 0 (or set max_epochs)"),
        "train");
  }
  for (const auto& [field, value] :
       {std::pair<const char*, double>{"log_every", train.log_every()},
        {"eval_every", train.eval_every()},
        {"eval_batches", train.eval_batches()},
        {"save_every", train.save_every()},
        {"keep_checkpoints", train.keep_checkpoints()},
        {"early_stopping_patience", train.early_stopping_patience()},
        {"sample_max_new_tokens", train.sample_max_new_tokens()},
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
  return absl::OkStatus();
}

absl::Status CheckEvaluation(const LoadedConfig& loaded,
                             const RunParts& parts) {
  const Train& train = loaded.config.train();
  for (const auto& [field, asked] :
       {std::pair<const char*, bool>{"eval_every", train.eval_every() > 0},
        {"keep_best", train.keep_best()},
        {"early_stopping_patience", train.early_stopping_patience() > 0}}) {
    if (!asked || parts.eval_data != nullptr) continue;
    // The notes may explain why train_data holds nothing out.
    const std::vector<std::string> notes = parts.train_data->notes();
    return loaded.Locate(
        FieldError(
            field,
            absl::StrCat("there is nothing to evaluate on: set "
                         "eval_data, or have train_data hold something "
                         "back",
                         notes.empty() ? "" : "; ", absl::StrJoin(notes, " "))),
        "train");
  }
  if (train.early_stopping_patience() > 0 && train.eval_every() == 0) {
    return loaded.Locate(
        FieldError("early_stopping_patience", "set eval_every, too"), "train");
  }
  return absl::OkStatus();
}

absl::Status CheckProfile(const LoadedConfig& loaded, int64_t last) {
  for (const int64_t step : loaded.config.profile().steps()) {
    if (step >= 1 && step <= last) continue;
    return loaded.Locate(
        FieldError("steps", absl::StrCat("must be between 1 and the run's last "
                                         "step ",
                                         last, ", is ", step)),
        "profile");
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const char* field, int64_t length,
                         const RunParts& parts) {
  const TokenModel* model = parts.model->token_model();
  if (length == 0) return FieldError(field, "has a prompt without a token");
  if (model == nullptr || length < model->max_positions()) {
    return absl::OkStatus();
  }
  return FieldError(field,
                    absl::StrCat("has ", length, " tokens, the model only ",
                                 model->max_positions(), " positions"));
}

absl::Status CheckSamplePrompts(const LoadedConfig& loaded,
                                const RunParts& parts) {
  const Train& train = loaded.config.train();
  const Tokenizer* tokenizer = parts.train_data->tokenizer();
  const auto check = [&](const SamplePrompt& prompt) {
    constexpr char kField[] = "sample_prompts";
    if (tokenizer == nullptr) {
      return FieldError(kField, "the training data has no tokenizer");
    }
    return CheckPrompt(kField,
                       prompt.kind_case() == SamplePrompt::kUser
                           ? parts.train_data->PromptIds(prompt.user()).size()
                           : tokenizer->Encode(prompt.prompt()).size(),
                       parts);
  };
  for (const SamplePrompt& prompt : train.sample_prompts()) {
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(check(prompt), "train"));
  }
  return absl::OkStatus();
}

// Checks what depends on the number of steps.
absl::Status CheckSteps(const LoadedConfig& loaded, const RunParts& parts,
                        const BatchPlan& plan) {
  const int64_t steps = StepsOfRun(
      loaded.config.train(), parts.train_data->size(), plan.global_batch_size);
  CAPSTAN_RETURN_IF_ERROR(CheckProfile(loaded, steps));
  return loaded.Locate(CheckSchedule(loaded.config.schedule(), steps),
                       "schedule");
}

}  // namespace

absl::StatusOr<BatchPlan> CheckRun(const LoadedConfig& loaded, int world_size,
                                   const RunParts& parts) {
  CAPSTAN_RETURN_IF_ERROR(CheckTrain(loaded));
  absl::StatusOr<BatchPlan> plan = PlanBatch(loaded.config.batch(), world_size);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(plan.status(), "batch"));
  CAPSTAN_RETURN_IF_ERROR(CheckSteps(loaded, parts, *plan));
  StrategyRequest request;
  request.model = parts.model.get();
  request.precision = parts.policy();
  request.world_size = world_size;
  request.accumulation = plan->accumulation;
  request.optimizer = parts.optimizer.get();
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      CheckOptimizer(*parts.optimizer,
                     {request.model, request.precision, world_size}),
      "optimizer"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(parts.strategy->Check(request), "strategy"));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      parts.objective->Check(*parts.model, *parts.train_data), "objective"));
  if (parts.eval_data != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
        parts.objective->Check(*parts.model, *parts.eval_data), "eval_data"));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckEvaluation(loaded, parts));
  if (loaded.config.has_hub_upload() &&
      loaded.config.hub_upload().repo().empty()) {
    return loaded.Locate(FieldError("repo", "name it: NAME/REPOSITORY"),
                         "hub_upload");
  }
  CAPSTAN_RETURN_IF_ERROR(CheckSamplePrompts(loaded, parts));
  return plan;
}

}  // namespace capstan
