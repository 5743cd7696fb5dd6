// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/gpus.h"
#include "base/simd/instruction_set.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "host/config/create_slot.h"
#include "host/config/load_config.h"
#include "inference/load/create_model.h"
#include "inference/load/run_tokenizer.h"
#include "kernels/context/run_device.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/session/loss_spikes.h"
#include "trainer/session/run_identity.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

std::string PackageIn(const google::protobuf::Any& any) {
  return PackageOf(TypeOf(any));
}

absl::Status CheckBatchSize(const char* field, int64_t size) {
  constexpr int64_t kMax = int64_t{1} << 31;
  if (size >= 0 && size <= kMax) return absl::OkStatus();
  return FieldError(field, absl::StrCat("must be between 1 and ", kMax,
                                        ", or 0 for the default, is ", size));
}

// PyTorch's name: "float32".
std::string DtypeName(c10::ScalarType dtype) {
  return c10::getDtypeNames(dtype).first;
}

absl::Status CheckHangs(const Train& train) {
  if (!Train::OnHang_IsValid(train.on_hang())) {
    return FieldError("on_hang",
                      absl::StrCat("no such value: ", train.on_hang()));
  }
  // Beyond a century a sum of nanoseconds would overflow.
  constexpr double kMost = 3e9;
  const double floor = train.hang_floor_seconds();
  const double ceiling = train.hang_ceiling_seconds();
  for (const auto& [field, value] :
       {std::pair<const char*, double>{"hang_floor_seconds", floor},
        {"hang_ceiling_seconds", ceiling}}) {
    if (value <= kMost) continue;
    return FieldError(field,
                      absl::StrCat("must be at most ", kMost, ", is ", value));
  }
  if (ceiling > 0 && floor > ceiling) {
    return FieldError("hang_ceiling_seconds",
                      absl::StrCat("is ", ceiling, ", less than ",
                                   "hang_floor_seconds, ", floor));
  }
  return absl::OkStatus();
}

// Steps stay countable: an epoch of the largest data sets has some 2^32
// samples.
constexpr double kMostEpochs = 1e9;

// Checks what doesn't depend on the data.
absl::Status CheckTrain(const Train& train) {
  if (train.max_steps() <= 0 && train.max_epochs() <= 0) {
    return train.has_max_epochs()
               ? FieldError("max_epochs",
                            "must be greater than 0 (or set max_steps)")
               : FieldError("max_steps",
                            "must be greater than 0 (or set max_epochs)");
  }
  if (!(std::abs(train.max_epochs()) <= kMostEpochs)) {
    return FieldError("max_epochs",
                      absl::StrCat("must be at most ", kMostEpochs, ", is ",
                                   train.max_epochs()));
  }
  for (const auto& [field, value] :
       {std::pair<const char*, double>{"log_every", train.log_every()},
        {"eval_every", train.eval_every()},
        {"eval_batches", train.eval_batches()},
        {"save_every", train.save_every()},
        {"keep_checkpoints", train.keep_checkpoints()},
        {"early_stopping_patience", train.early_stopping_patience()},
        {"sample_max_new_tokens", train.sample_max_new_tokens()},
        {"skip_bad_samples", train.skip_bad_samples()},
        {"max_grad_norm", train.max_grad_norm()},
        {"mirror_every", train.mirror_every()},
        {"hang_floor_seconds", train.hang_floor_seconds()},
        {"hang_ceiling_seconds", train.hang_ceiling_seconds()}}) {
    if (value >= 0) continue;
    return FieldError(field, absl::StrCat("must not be negative, is ", value));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckHangs(train));
  CAPSTAN_RETURN_IF_ERROR(LossSpikeJudge::Check(train.loss_spikes()));
  if (train.loss_spikes().action() == LossSpikes::GO_BACK &&
      train.save_every() == 0) {
    return FieldError("loss_spikes",
                      "GO_BACK goes back to checkpoints: set save_every, too");
  }
  const bool every_n = train.activation_checkpointing() == Train::EVERY_N;
  if (every_n != (train.activation_checkpointing_n() > 0)) {
    return FieldError("activation_checkpointing_n",
                      every_n
                          ? "must be greater than 0 with EVERY_N"
                          : "is for activation_checkpointing: EVERY_N only");
  }
  return absl::OkStatus();
}

absl::Status CheckOffload(const Train& train, bool on_gpu) {
  if (!train.offload().activations()) return absl::OkStatus();
  if (!on_gpu) {
    return FieldError("offload.activations",
                      "needs a GPU: without one activations are in host memory "
                      "anyway; leave it out");
  }
  if (train.activation_checkpointing() == Train::NONE) {
    return FieldError("offload.activations",
                      "moves the inputs of recomputed units: set "
                      "activation_checkpointing: EVERY_UNIT, too");
  }
  return absl::OkStatus();
}

// A strategy that has the state updated by the CPU leaves nothing to page.
absl::Status CheckPagedState(const Train& train, const RunParts& parts,
                             const StrategyRequest& request) {
  if (!parts.device.gpu || !train.offload().optimizer_state() ||
      !parts.strategy->Plan(request).optimizer_on_host) {
    return absl::OkStatus();
  }
  return FieldError(
      "offload.optimizer_state",
      absl::StrCat("doesn't go with the offload of ", parts.strategy_name,
                   ", which keeps the optimizer's state in host memory "
                   "already: leave the one or the other out"));
}

// What can't be told from the first recording (micro_step_graph.h).
absl::Status CheckGraphs(const Train& train, const RunParts& parts) {
  if (!train.cuda_graphs() || !parts.device.gpu) return absl::OkStatus();
  if (train.offload().activations()) {
    return FieldError("cuda_graphs",
                      "doesn't go with offload.activations, which copies to "
                      "and from host memory within the micro-step: leave the "
                      "one or the other out");
  }
  const Strategy& strategy = *parts.strategy;
  const bool gathers = strategy.collective_forward();
  if (!gathers && dynamic_cast<const HeldGradients*>(&strategy) != nullptr) {
    return absl::OkStatus();
  }
  return FieldError(
      "cuda_graphs",
      absl::StrCat("doesn't go with ", parts.strategy_name, ", which ",
                   gathers ? "gathers parameters within the micro-step"
                           : "can't hold its reductions back "
                             "(plugins/sdk/held_gradients.h)",
                   ": take capstan.ddp or capstan.zero2, or leave it out"));
}

absl::Status CheckEvaluation(const Train& train, const RunParts& parts) {
  for (const auto& [field, asked] :
       {std::pair<const char*, bool>{"eval_every", train.eval_every() > 0},
        {"keep_best", train.keep_best()},
        {"early_stopping_patience", train.early_stopping_patience() > 0}}) {
    if (!asked || parts.eval_data != nullptr) continue;
    // The notes may explain why train_data holds nothing out.
    const std::vector<std::string> notes = parts.train_data->notes();
    return FieldError(
        field,
        absl::StrCat("there is nothing to evaluate on: set eval_data, or have "
                     "train_data hold something back",
                     notes.empty() ? "" : "; ", absl::StrJoin(notes, " ")));
  }
  if (train.early_stopping_patience() > 0 && train.eval_every() == 0) {
    return FieldError("early_stopping_patience", "set eval_every, too");
  }
  return absl::OkStatus();
}

absl::Status CheckProfile(const Profile& profile, int64_t last) {
  for (const int64_t step : profile.steps()) {
    if (step >= 1 && step <= last) continue;
    return FieldError("steps",
                      absl::StrCat("must be between 1 and the run's last step ",
                                   last, ", is ", step));
  }
  return absl::OkStatus();
}

absl::Status CheckSamplePrompts(const Train& train, const RunParts& parts) {
  constexpr char kField[] = "sample_prompts";
  const TokenModel* const model = parts.model->token_model();
  const Tokenizer* const tokenizer = parts.train_data->tokenizer();
  for (const SamplePrompt& prompt : train.sample_prompts()) {
    if (tokenizer == nullptr) {
      return FieldError(kField, "the training data has no tokenizer");
    }
    const bool user = prompt.kind_case() == SamplePrompt::kUser;
    const std::string& text = user ? prompt.user() : prompt.prompt();
    const absl::Status known = CheckKnown(*tokenizer, text);
    if (!known.ok()) return FieldError(kField, known.message());
    int64_t length = 0;
    const absl::Status encoded = CatchAll([&] {
      length =
          static_cast<int64_t>(user ? parts.train_data->PromptIds(text).size()
                                    : tokenizer->Encode(text).size());
      return absl::OkStatus();
    });
    if (!encoded.ok()) return FieldError(kField, encoded.message());
    if (length == 0) return FieldError(kField, "has a prompt without a token");
    if (model != nullptr && length >= model->max_positions()) {
      return FieldError(kField,
                        absl::StrCat("has ", length, " tokens, the model only ",
                                     model->max_positions(), " positions"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t LeastGpuMemory() {
  int64_t least = CurrentRunDevice().memory;
  if (least > 0) return least;
  for (const Gpu& gpu : Gpus().gpus) {
    least = least == 0 ? gpu.memory : std::min(least, gpu.memory);
  }
  return least;
}

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
  checkpointing.offload = train.offload().activations();
  return checkpointing;
}

bool SumsAlongTree(const Train& train, const RunParts& parts) {
  return train.deterministic() && !parts.device.gpu;
}

absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, int world_size) {
  BatchPlan plan;
  plan.automatic = batch.micro_batch_size() == Batching::AUTO;
  if (!plan.automatic) {
    CAPSTAN_RETURN_IF_ERROR(
        CheckBatchSize("micro_batch_size", batch.micro_batch_size()));
    if (batch.micro_batch_size() > 0) {
      plan.micro_batch_size = batch.micro_batch_size();
    }
  } else if (batch.global_batch_size() == 0) {
    return FieldError("global_batch_size",
                      "must be set with micro_batch_size: AUTO");
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckBatchSize("global_batch_size", batch.global_batch_size()));
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
  return WithMicroBatch(plan, plan.micro_batch_size, world_size);
}

BatchPlan WithMicroBatch(BatchPlan plan, int64_t micro_batch_size,
                         int world_size) {
  plan.micro_batch_size = micro_batch_size;
  plan.accumulation = plan.global_batch_size / (micro_batch_size * world_size);
  return plan;
}

absl::StatusOr<std::unique_ptr<Collector>> CreateCollector(
    const LoadedConfig& loaded, PluginHost& host) {
  if (!loaded.config.has_collect()) return std::unique_ptr<Collector>();
  CAPSTAN_ASSIGN_OR_RETURN(
      const google::protobuf::Any collect,
      WithDefaults(loaded.config.collect(), loaded.config));
  return CreateSlot<Collector>(loaded, "collect", collect,
                               PluginCategory::kCollector, host);
}

std::string PrecisionName(const RunConfig& config, const RunParts& parts) {
  const std::string package = PackageIn(config.precision());
  if (!parts.precision->depends_on_device()) return package;
  return absl::StrCat(package, " (", DtypeName(parts.policy().compute), ")");
}

int64_t ParameterCount(const Model& model) {
  int64_t count = 0;
  for (const ParameterSpec& spec : model.parameters()) count += spec.numel();
  return count;
}

std::vector<std::string> TokenizerFolders(const RunConfig& config,
                                          const std::string& checkpoint) {
  std::vector<std::string> folders;
  if (config.has_model() && !config.replace_tokenizer()) {
    folders = {config.adapter().lora().pretrained(),
               BaseModelOf(config).folder};
  }
  // Or the checkpoint's would win over the one that it may be replaced by.
  if (!MayHaveChanged(config.train(), "tokenizer")) {
    folders.push_back(checkpoint);
  }
  return folders;
}

absl::StatusOr<RunParts> CreateRunParts(const LoadedConfig& loaded, int gpus,
                                        PluginHost& host, bool here,
                                        const std::string& resumed_from) {
  const RunConfig& config = loaded.config;
  RunParts parts;
  const auto make = [&](const char* slot, const google::protobuf::Any& any,
                        PluginCategory category, auto* made) -> absl::Status {
    using Base = typename std::decay_t<decltype(*made)>::element_type;
    CAPSTAN_ASSIGN_OR_RETURN(
        *made, CreateSlot<Base>(loaded, slot, any, category, host));
    return absl::OkStatus();
  };
  // `plan --gpu_memory` has said it before. Models lay out parameters by it.
  if (CurrentRunDevice().memory == 0) {
    SetRunDevice({gpus > 0, gpus > 0 && here ? LeastGpuMemory() : 0});
  }
  CAPSTAN_ASSIGN_OR_RETURN(parts.model, CreateModel(loaded, host, &parts.lora));
  CAPSTAN_RETURN_IF_ERROR(make("objective", config.objective(),
                               PluginCategory::kObjective, &parts.objective));
  RunTokenizer tokenizer(TokenizerFolders(config, resumed_from));
  CAPSTAN_RETURN_IF_ERROR(tokenizer.AddTokens(loaded).status());
  const auto open = [&](const char* slot, const google::protobuf::Any& any,
                        std::unique_ptr<DatasetReader>* reader) {
    const absl::Status made = make(slot, tokenizer.WithNewTokens(any),
                                   PluginCategory::kDatasetReader, reader);
    return made.ok() ? tokenizer.Check(loaded, slot, any, **reader) : made;
  };
  CAPSTAN_RETURN_IF_ERROR(
      open("train_data", config.train_data(), &parts.train_data));
  CAPSTAN_RETURN_IF_ERROR(tokenizer.Adopt(*parts.train_data));
  if (config.has_eval_data()) {
    CAPSTAN_RETURN_IF_ERROR(
        open("eval_data", config.eval_data(), &parts.eval_data));
  } else {
    absl::StatusOr<std::unique_ptr<DatasetReader>> held_back =
        parts.train_data->Validation();
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(held_back.status(), "train_data"));
    parts.eval_data = *std::move(held_back);
  }
  CAPSTAN_RETURN_IF_ERROR(make("strategy", config.strategy(),
                               PluginCategory::kStrategy, &parts.strategy));
  CAPSTAN_RETURN_IF_ERROR(make("precision", config.precision(),
                               PluginCategory::kPrecision, &parts.precision));
  CAPSTAN_RETURN_IF_ERROR(make("optimizer", config.optimizer(),
                               PluginCategory::kOptimizer, &parts.optimizer));
  parts.strategy_name = PackageIn(config.strategy());
  parts.device =
      here ? DeviceOf(*parts.precision, gpus) : DeviceFacts{gpus > 0, 80};
  parts.precision_name = PrecisionName(config, parts);
  parts.optimizer_name = PackageIn(config.optimizer());
  return parts;
}

DeviceFacts DeviceOf(const Precision& precision, int gpus) {
  DeviceFacts device;
  device.gpu = gpus > 0;
  if (device.gpu && precision.depends_on_device()) {
    device.compute_capability = LeastComputeCapability();
  }
  return device;
}

std::string SlowPrecisionNote(const Precision& precision,
                              const std::string& package,
                              const DeviceFacts& device) {
  const c10::ScalarType dtype = precision.PolicyOn(device).compute;
  if (device.gpu || !c10::isReducedFloatingType(dtype)) return "";
  // Elsewhere 16-bit factors are converted where products are packed.
  if (dtype == c10::ScalarType::BFloat16 && HasFastBf16Products()) return "";
  const std::string instead = precision.instead();
  return absl::StrCat(package, " computes in ", DtypeName(dtype),
                      ", in which this processor is no faster than in float32",
                      dtype == c10::ScalarType::BFloat16
                          ? "; AMD's with AVX512-BF16 and Intel's with AMX are"
                          : "",
                      instead.empty() ? "" : absl::StrCat("; set ", instead));
}

std::vector<std::string> GpuSettingNotes(const Train& train,
                                         const DeviceFacts& device) {
  std::vector<std::string> notes;
  const auto note = [&](bool set, const char* field) {
    if (!set || device.gpu) return;
    notes.push_back(
        absl::StrCat("train.", field, " has no effect without a GPU"));
  };
  note(train.tf32(), "tf32");
  note(train.memory_snapshot_at_oom(), "memory_snapshot_at_oom");
  note(train.cuda_graphs(), "cuda_graphs");
  return notes;
}

absl::StatusOr<BatchPlan> CheckRun(const LoadedConfig& loaded, int world_size,
                                   const RunParts& parts) {
  const RunConfig& config = loaded.config;
  const Train& train = config.train();
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckTrain(train), "train"));
  for (const auto& [slot, data] :
       {std::make_pair("train_data", parts.train_data.get()),
        std::make_pair("eval_data", parts.eval_data.get())}) {
    if (data == nullptr || data->size() > 0) continue;
    return loaded.Locate(
        absl::InvalidArgumentError("has no samples: name data that has some"),
        slot);
  }
  absl::StatusOr<BatchPlan> plan = PlanBatch(config.batch(), world_size);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(plan.status(), "batch"));
  if (SumsAlongTree(train, parts) && !parts.strategy->SumsEachMicroStep()) {
    plan->order = MicroBatchOrder::kByRank;
  }
  const int64_t steps =
      StepsOfRun(train, parts.train_data->size(), plan->global_batch_size);
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckOffload(train, parts.device.gpu), "train"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckProfile(config.profile(), steps), "profile"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckSchedule(config.schedule(), steps), "schedule"));
  StrategyRequest request;
  request.model = parts.model.get();
  request.precision = parts.policy();
  request.world_size = world_size;
  request.accumulation = plan->accumulation;
  request.optimizer = parts.optimizer.get();
  request.deterministic = SumsAlongTree(train, parts);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      CheckOptimizer(*parts.optimizer,
                     {request.model, request.precision, world_size}),
      "optimizer"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(parts.strategy->Check(request), "strategy"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckPagedState(train, parts, request), "train"));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckGraphs(train, parts), "train"));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      parts.objective->Check(*parts.model, *parts.train_data), "objective"));
  if (parts.eval_data != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
        parts.objective->Check(*parts.model, *parts.eval_data), "eval_data"));
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckEvaluation(train, parts), "train"));
  if (config.has_hub_upload() && config.hub_upload().repo().empty()) {
    return loaded.Locate(FieldError("repo", "name it: NAME/REPOSITORY"),
                         "hub_upload");
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckSamplePrompts(train, parts), "train"));
  return plan;
}

}  // namespace capstan
