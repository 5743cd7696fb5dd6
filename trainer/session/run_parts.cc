// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_parts.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/gpus.h"
#include "base/simd/instruction_set.h"
#include "base/status.h"
#include "host/config/create_slot.h"
#include "host/config/load_config.h"
#include "inference/load/create_model.h"
#include "inference/load/run_tokenizer.h"
#include "kernels/context/recompute.h"
#include "kernels/context/row_division.h"
#include "kernels/context/run_device.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/eval_tasks.h"
#include "trainer/session/run_identity.h"

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

absl::Status CheckSetNames(const RunConfig& config) {
  std::set<std::string> names;
  for (const EvalSet& set : config.eval_sets()) {
    const std::string& name = set.name();
    const bool plain =
        !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
          return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                 c == '_' || c == '-';
        });
    if (!plain) {
      return FieldError(
          "name", absl::StrCat("is \"", name,
                               "\": each set needs a name of letters, digits, "
                               "'_' and '-'"));
    }
    if (names.insert(name).second) continue;
    return FieldError("name", absl::StrCat("two sets are called ", name,
                                           ": give each a name of its own"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<const DatasetReader*> RunParts::evaluated() const {
  std::vector<const DatasetReader*> readers;
  if (eval_data != nullptr) readers.push_back(eval_data.get());
  for (const EvalSetData& set : eval_sets) readers.push_back(set.reader.get());
  return readers;
}

std::string SetTag(const std::string& name, const std::string& tag) {
  return absl::StrCat("eval/", name, "_", tag.substr(tag.find('/') + 1));
}

namespace {

// The names in metrics.jsonl of numbers of the objective's, for each of the
// run's data.
std::vector<std::string> NamesForData(const std::vector<std::string>& tags,
                                      const RunParts& parts) {
  std::vector<std::string> names;
  for (const std::string& tag : tags) {
    if (parts.eval_data != nullptr) names.push_back(MetricName(tag));
  }
  for (const EvalSetData& set : parts.eval_sets) {
    for (const std::string& tag : tags) {
      names.push_back(MetricName(SetTag(set.name, tag)));
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> EvaluationMetrics(const RunParts& parts) {
  std::vector<std::string> tags = {"eval/loss"};
  for (const auto& [name, value] : parts.objective->DerivedFromLoss(1.0)) {
    tags.push_back(absl::StrCat("eval/", name));
  }
  for (const MetricTags& metric : parts.objective->metrics()) {
    // Evaluations may lack those of training, and the other way round.
    if (!metric.train.empty() && !metric.eval.empty()) {
      tags.push_back(metric.eval);
    }
  }
  std::vector<std::string> names = NamesForData(tags, parts);
  if (parts.eval_tasks != nullptr) {
    for (std::string& name : TaskMetricNames(*parts.eval_tasks)) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

bool MayBeMeasured(const std::string& name, const RunParts& parts) {
  std::vector<std::string> thorough;
  for (const MetricTags& metric : parts.objective->metrics()) {
    if (metric.train.empty()) thorough.push_back(metric.eval);
  }
  for (const std::string& never : NamesForData(thorough, parts)) {
    if (name == never) return false;
  }
  const auto is_of = [&name](const std::string& tag) {
    return absl::StartsWith(name, MetricName(tag));
  };
  for (const EvalSetData& set : parts.eval_sets) {
    if (is_of(SetTag(set.name, ""))) return true;
  }
  if (parts.eval_tasks != nullptr) {
    for (const evaluate::SuiteTask& task : parts.eval_tasks->tasks()) {
      if (is_of(TaskTag(task.name, ""))) return false;
    }
    for (const evaluate::SuiteGroup& group : parts.eval_tasks->groups()) {
      if (is_of(TaskTag(group.name, ""))) return false;
    }
  }
  return parts.eval_data != nullptr && is_of("eval/");
}

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

bool SumsExactly(const Train& train, const RunParts& parts) {
  return train.deterministic() && !parts.device.gpu;
}

int64_t EpochRows(const RunParts& parts) {
  const RolloutPlan plan = parts.objective->rollout_plan();
  return parts.train_data->size() * plan.rows_per_sample *
         plan.steps_per_sample;
}

DataOrder OrderOfRun(const RunConfig& config, const RunParts& parts,
                     int64_t global_batch_size) {
  return OrderOf(*parts.train_data, config.train().seed(),
                 config.batch().group_by_length(), global_batch_size,
                 parts.objective->rollout_plan());
}

Mesh MeshOf(const Train& train, int world_size) {
  Mesh mesh;
  mesh.sequence = static_cast<int>(
      std::clamp<int64_t>(train.sequence_parallel(), 1, world_size));
  mesh.data = std::max(1, world_size / mesh.sequence);
  return mesh;
}

absl::Status CheckMesh(const Train& train, int world_size) {
  const int64_t ranks = train.sequence_parallel();
  if (ranks < 0) {
    return FieldError("sequence_parallel",
                      absl::StrCat("is ", ranks, ": must be 1 or more"));
  }
  if (ranks == 0 || world_size % ranks == 0) return absl::OkStatus();
  return FieldError(
      "sequence_parallel",
      absl::StrCat(ranks, " doesn't divide the run's ", world_size,
                   world_size == 1 ? " rank" : " ranks",
                   " (launch.processes)"));
}

absl::StatusOr<BatchPlan> PlanBatch(const Batching& batch, const Mesh& mesh) {
  BatchPlan plan;
  plan.automatic = batch.micro_batch_size() == Batching::AUTO;
  if (!plan.automatic) {
    CAPSTAN_RETURN_IF_ERROR(
        CheckBatchSize("micro_batch_size", batch.micro_batch_size()));
    if (batch.micro_batch_size() > 0) {
      plan.micro_batch_size = batch.micro_batch_size();
    }
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckBatchSize("global_batch_size", batch.global_batch_size()));
  const int64_t samples = plan.micro_batch_size * mesh.data;
  plan.global_batch_size = batch.global_batch_size() > 0
                               ? batch.global_batch_size()
                               : samples * (plan.automatic ? kAutoSamples : 1);
  if (plan.global_batch_size % plan.micro_batch_size != 0) {
    return FieldError("global_batch_size",
                      absl::StrCat(plan.global_batch_size,
                                   " is not a multiple of micro_batch_size, ",
                                   plan.micro_batch_size));
  }
  return WithMicroBatch(plan, plan.micro_batch_size, mesh.data);
}

BatchPlan WithMicroBatch(BatchPlan plan, int64_t micro_batch_size,
                         int at_once) {
  plan.micro_batch_size = micro_batch_size;
  plan.accumulation =
      BatchShares{micro_batch_size, plan.global_batch_size, at_once}
          .micro_steps();
  return plan;
}

absl::Status CheckEqualShares(const BatchPlan& plan, const Mesh& mesh,
                              absl::string_view why) {
  if (plan.Shares(mesh).idle_ranks() == 0) return absl::OkStatus();
  return FieldError(
      "global_batch_size",
      absl::StrCat(plan.global_batch_size,
                   " is not a multiple of micro_batch_size x ranks",
                   mesh.sequence > 1 ? " / sequence_parallel" : "", " = ",
                   plan.micro_batch_size, " x ", mesh.data, ", which ", why,
                   " needs"));
}

std::string IdleRanksNote(const BatchPlan& plan, const Mesh& mesh) {
  const BatchShares shares = plan.Shares(mesh);
  const int64_t idle = shares.idle_ranks();
  if (idle == 0) return "";
  const std::string ranks =
      mesh.sequence > 1 ? absl::StrCat("groups of ", mesh.sequence, " ranks")
                        : "ranks";
  return absl::StrCat(
      idle, " of ", mesh.data, " ", ranks, idle == 1 ? " is" : " are", " idle",
      shares.micro_steps() > 1
          ? absl::StrCat(" in the last of ", shares.micro_steps(),
                         " micro-steps")
          : "",
      ", as a step has ", shares.micro_batches(),
      shares.micro_batches() == 1 ? " micro-batch" : " micro-batches",
      " (batch.global_batch_size)");
}

absl::StatusOr<std::unique_ptr<Collector>> CreateCollector(
    const LoadedConfig& loaded, PluginHost& host) {
  if (!loaded.config.has_collect()) return std::unique_ptr<Collector>();
  CAPSTAN_ASSIGN_OR_RETURN(
      const google::protobuf::Any collect,
      WithDefaults(loaded.config.collect(), loaded.config));
  return CreateSlot<Collector>(loaded, "collect", collect, host);
}

std::string PrecisionName(const RunConfig& config, const RunParts& parts) {
  const std::string package = PackageIn(config.precision());
  if (!parts.precision->depends_on_device()) return package;
  return absl::StrCat(package, " (", DtypeName(parts.policy().compute), ")");
}

absl::optional<OwnCurve> OwnCurveOf(const Strategy& strategy,
                                    const Objective* objective) {
  absl::optional<OwnCurve> curve = strategy.own_curve();
  if (objective == nullptr) return curve;
  const absl::optional<OwnCurve> other = objective->own_curve();
  if (!curve.has_value() || !other.has_value()) {
    return curve.has_value() ? curve : other;
  }
  curve->loss += other->loss;
  absl::StrAppend(&curve->why, "; ", other->why);
  return curve;
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

namespace {

// Has the model multiply in 8 bits, if the precision does. `on_gpus`: on those
// of this machine.
absl::Status SetFp8(bool on_gpus, RunParts* parts) {
  // NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities".
  constexpr int kFirstWithFp8 = 89;
  Fp8Spec how;
  if (!parts->precision->UsesFp8(&how)) return absl::OkStatus();
  const int capability = on_gpus ? LeastComputeCapability() : 0;
  if (capability != 0 && capability < kFirstWithFp8) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a GPU here has compute capability ", capability / 10, ".",
        capability % 10,
        ", and products in 8 bits need 8.9 (Ada, Hopper and later): set "
        "precision=capstan.bf16"));
  }
  parts->fp8 = how;
  return parts->model->SetFp8(how);
}

}  // namespace

absl::StatusOr<RunParts> CreateRunParts(const LoadedConfig& loaded, int gpus,
                                        PluginHost& host, bool here,
                                        const std::string& resumed_from) {
  const RunConfig& config = loaded.config;
  RunParts parts;
  const auto make = [&](const std::string& slot,
                        const google::protobuf::Any& any,
                        auto* made) -> absl::Status {
    using Base = typename std::decay_t<decltype(*made)>::element_type;
    CAPSTAN_ASSIGN_OR_RETURN(*made, CreateSlot<Base>(loaded, slot, any, host));
    return absl::OkStatus();
  };
  // `plan --gpu_memory` has said it before. Models lay out parameters by it.
  if (CurrentRunDevice().memory == 0) {
    SetRunDevice({gpus > 0, gpus > 0 && here ? LeastGpuMemory() : 0});
  }
  SetRecomputesMlp(config.train().activation_checkpointing() == Train::MLP);
  // In a deterministic run each rank computes whole rows.
  SetRowDivision(
      config.train().deterministic()
          ? 1
          : MeshOf(config.train(), std::numeric_limits<int>::max()).sequence);
  CAPSTAN_ASSIGN_OR_RETURN(parts.model, CreateModel(loaded, host, &parts.lora));
  CAPSTAN_RETURN_IF_ERROR(
      make("objective", config.objective(), &parts.objective));
  RunTokenizer tokenizer(TokenizerFolders(config, resumed_from));
  CAPSTAN_RETURN_IF_ERROR(tokenizer.AddTokens(loaded).status());
  const auto open = [&](const std::string& slot,
                        const google::protobuf::Any& any,
                        std::unique_ptr<DatasetReader>* reader) {
    const absl::Status made = make(slot, tokenizer.WithNewTokens(any), reader);
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
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckSetNames(config), "eval_sets"));
  for (int i = 0; i < config.eval_sets_size(); ++i) {
    const EvalSet& set = config.eval_sets(i);
    parts.eval_sets.push_back({set.name(), nullptr});
    CAPSTAN_RETURN_IF_ERROR(open(absl::StrCat("eval_sets[", i, "].data"),
                                 set.data(), &parts.eval_sets.back().reader));
  }
  if (config.has_eval_tasks()) {
    auto tasks = OpenEvalTasks(config.eval_tasks(), *parts.model,
                               parts.train_data->tokenizer());
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(tasks.status(), "eval_tasks"));
    parts.eval_tasks = *std::move(tasks);
  }
  CAPSTAN_RETURN_IF_ERROR(make("strategy", config.strategy(), &parts.strategy));
  CAPSTAN_RETURN_IF_ERROR(
      make("precision", config.precision(), &parts.precision));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(SetFp8(gpus > 0 && here, &parts), "precision"));
  CAPSTAN_RETURN_IF_ERROR(
      make("optimizer", config.optimizer(), &parts.optimizer));
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

}  // namespace capstan
