// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/check_run.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "kernels/context/recompute.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/loss_spikes.h"
#include "trainer/session/schedule.h"
#include "trainer/session/session.h"
#include "trainer/session/slow_hosts.h"

namespace capstan {
namespace {

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
  const Witness& witness = train.witness();
  if (witness.most_failures() > 0 && !witness.check()) {
    return FieldError("witness.most_failures",
                      "has no effect without check: set it, too");
  }
  if (witness.twice() && !witness.check()) {
    return FieldError("witness.twice",
                      "has no effect without check: set it, too");
  }
  if (witness.every_steps() > 0 && !witness.check()) {
    return FieldError("witness.every_steps",
                      "has no effect without check: set it, too");
  }
  if (train.max_steps() > 0 && witness.every_steps() > train.max_steps()) {
    return FieldError(
        "witness.every_steps",
        absl::StrCat("is ", witness.every_steps(), ", but the run has only ",
                     train.max_steps(),
                     " steps (max_steps), none of which would be checked"));
  }
  if (witness.within_steps() > 0 && witness.most_failures() == 0) {
    return FieldError("witness.within_steps",
                      "has no effect without most_failures: set it, too");
  }
  return absl::OkStatus();
}

// What a model keeps, of a few tokens.
int64_t KeptBytes(const RunParts& parts) {
  constexpr int64_t kLength = 64;
  int64_t bytes = 0;
  for (const UnitMemory& unit :
       parts.model->PlanUnits(1, kLength, parts.policy().compute)) {
    bytes += unit.kept;
  }
  return bytes;
}

// A model with layers of its own kind may know nothing of the setting.
absl::Status CheckRecomputedMlp(const Train& train, const RunParts& parts) {
  if (train.activation_checkpointing() != Train::MLP) return absl::OkStatus();
  const int64_t without = KeptBytes(parts);
  SetRecomputesMlp(false);
  const int64_t with = KeptBytes(parts);
  SetRecomputesMlp(true);
  if (without < with) return absl::OkStatus();
  return FieldError("activation_checkpointing",
                    "MLP: this model keeps no gate and up of MLPs or experts; "
                    "set EVERY_UNIT");
}

absl::Status CheckOffload(const Train& train, bool on_gpu) {
  if (!train.offload().activations()) return absl::OkStatus();
  if (!on_gpu) {
    return FieldError("offload.activations",
                      "needs a GPU: without one activations are in host memory "
                      "anyway; leave it out");
  }
  if (train.activation_checkpointing() == Train::NONE ||
      train.activation_checkpointing() == Train::MLP) {
    return FieldError("offload.activations",
                      "moves the inputs of units that are recomputed as a "
                      "whole: set "
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
  if (parts.objective->has_rollouts()) {
    return FieldError("cuda_graphs",
                      "doesn't go with an objective with rollouts, which makes "
                      "batches of its own in each step: leave it out");
  }
  Strategy& strategy = *parts.strategy;
  const bool gathers = strategy.collective_forward();
  if (!gathers && strategy.held_gradients() != nullptr) {
    return absl::OkStatus();
  }
  return FieldError(
      "cuda_graphs",
      absl::StrCat("doesn't go with ", parts.strategy_name, ", which ",
                   gathers ? "gathers parameters within the micro-step"
                           : "can't hold its reductions back "
                             "(Strategy::held_gradients)",
                   ": take capstan.ddp or capstan.zero2, or leave it out"));
}

// What strategies and checkpoints go by.
absl::Status CheckParameters(const Model& model) {
  const auto units = static_cast<int>(model.units().size());
  std::set<std::string> names;
  for (const ParameterSpec& spec : model.parameters()) {
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("declares two parameters '", spec.name, "'"));
    }
    std::vector<int> used = spec.other_units;
    used.push_back(spec.unit);
    for (const int unit : used) {
      if (unit >= 0 && unit < units) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", spec.name, "' is of unit ", unit,
                       ", but units() has ", units));
    }
  }
  return absl::OkStatus();
}

// The model's own objections come once there is a group (JoinSequence).
absl::Status CheckSequence(const Train& train, int world_size,
                           const RunParts& parts) {
  CAPSTAN_RETURN_IF_ERROR(CheckMesh(train, world_size));
  const int64_t ranks = train.sequence_parallel();
  if (ranks <= 1) return absl::OkStatus();
  const auto error = [](const auto&... words) {
    return FieldError("sequence_parallel", absl::StrCat(words...));
  };
  if (parts.device.gpu && train.cuda_graphs()) {
    return error("doesn't go with cuda_graphs: leave one of them out");
  }
  if (!parts.objective->allows_divided_rows()) {
    return error(
        "this objective doesn't go with ranks that share rows: leave it out");
  }
  if (parts.model->token_model() == nullptr) {
    return error("is for models of tokens: leave it out");
  }
  if (parts.strategy->local_steps()) {
    return error("doesn't go with ", parts.strategy_name,
                 ", whose ranks train replicas of their own: leave it out");
  }
  if (train.skip_bad_samples() > 0) {
    return error("doesn't go with skip_bad_samples, as ranks may skip others");
  }
  if (train.deterministic() && parts.policy().compute == at::kHalf) {
    return error("doesn't go with fp16 in a deterministic run: take bf16");
  }
  if (train.deterministic() && (ranks & (ranks - 1)) != 0) {
    return error("must be a power of two in a deterministic run, is ", ranks);
  }
  return absl::OkStatus();
}

// Where a rank without a micro-batch would do more than add nothing.
absl::Status CheckShares(const BatchPlan& plan, const Mesh& mesh,
                         const RunParts& parts) {
  if (parts.objective->has_rollouts()) {
    CAPSTAN_RETURN_IF_ERROR(
        CheckEqualShares(plan, mesh, "an objective with rollouts"));
  }
  return parts.strategy->local_steps()
             ? CheckEqualShares(plan, mesh, parts.strategy_name)
             : absl::OkStatus();
}

// Whether each number of an evaluation has a name of its own.
absl::Status CheckMetricNames(const RunParts& parts) {
  std::set<std::string> names;
  for (const std::string& name : EvaluationMetrics(parts)) {
    if (names.insert(name).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("two evaluations would be called ", name,
                     ": give the set or the task another name"));
  }
  return absl::OkStatus();
}

// Whether one becomes the other by one character more, less, or another.
bool AlmostSame(absl::string_view a, absl::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  if (a.size() > b.size() + 1) return false;
  const size_t at =
      std::mismatch(b.begin(), b.end(), a.begin()).first - b.begin();
  return at == b.size() ||
         a.substr(at + 1) == b.substr(at + (a.size() == b.size() ? 1 : 0));
}

// What train.best_metric names, as far as that is known before the first
// evaluation.
absl::Status CheckBestMetric(const Train& train, const RunParts& parts) {
  const std::string metric = BestMetric(train);
  if (!KeepsBest(train) && train.best_metric().empty()) return absl::OkStatus();
  const std::vector<std::string> known = EvaluationMetrics(parts);
  // Rows that are several answers of the model's own to a sample.
  const bool answers = parts.objective->has_rollouts() &&
                       parts.objective->rollout_plan().rows_per_sample > 1;
  if (train.best_metric().empty() && answers) {
    return FieldError(
        "best_metric",
        absl::StrCat("must be set for keep_best and early_stopping_patience, "
                     "as evaluations of an objective with rollouts of several "
                     "answers have no loss, the default: set it to one of ",
                     absl::StrJoin(known, ", ")));
  }
  bool misspelt = false;
  for (const std::string& name : known) {
    if (name == metric) return absl::OkStatus();
    misspelt |= AlmostSame(name, metric);
  }
  return misspelt || metric == kEvalLoss || !MayBeMeasured(metric, parts)
             ? NoSuchMetric(metric, known)
             : absl::OkStatus();
}

absl::Status CheckEvaluation(const Train& train, const RunParts& parts) {
  for (const auto& [field, asked] :
       {std::pair<const char*, bool>{"eval_every", train.eval_every() > 0},
        {"keep_best", train.keep_best()},
        {"early_stopping_patience", train.early_stopping_patience() > 0},
        {"best_metric", !train.best_metric().empty()}}) {
    if (!asked || parts.evaluates()) continue;
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
  return CheckBestMetric(train, parts);
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

absl::Status CheckProfile(const Profile& profile, int64_t last) {
  for (const int64_t step : profile.steps()) {
    if (step >= 1 && step <= last) continue;
    return FieldError("steps",
                      absl::StrCat("must be between 1 and the run's last step ",
                                   last, ", is ", step));
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchPlan> CheckRun(const LoadedConfig& loaded, int world_size,
                                   const RunParts& parts) {
  const RunConfig& config = loaded.config;
  const Train& train = config.train();
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckTrain(train), "train"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(Annotate(CheckParameters(*parts.model),
                             PackageOf(TypeOf(config.model()))),
                    "model"));
  std::vector<std::pair<std::string, const DatasetReader*>> all = {
      {"train_data", parts.train_data.get()}};
  if (parts.eval_data != nullptr) {
    all.emplace_back("eval_data", parts.eval_data.get());
  }
  for (size_t i = 0; i < parts.eval_sets.size(); ++i) {
    all.emplace_back(absl::StrCat("eval_sets[", i, "].data"),
                     parts.eval_sets[i].reader.get());
  }
  for (const auto& [slot, data] : all) {
    if (data->size() > 0) continue;
    return loaded.Locate(
        WithCode(absl::InvalidArgumentError(
                     "has no samples: name data that has some"),
                 "data/no-rows"),
        slot);
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckSequence(train, world_size, parts), "train"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckSlowHosts(config.launch()), "launch"));
  const int64_t least = config.launch().min_processes();
  if (least % std::max<int64_t>(1, train.sequence_parallel()) != 0) {
    return loaded.Locate(
        FieldError("min_processes",
                   absl::StrCat(least, " is not a multiple of ",
                                "train.sequence_parallel, ",
                                train.sequence_parallel())),
        "launch");
  }
  absl::StatusOr<BatchPlan> plan =
      PlanBatch(config.batch(), MeshOf(train, world_size));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(plan.status(), "batch"));
  plan->replicas_apart = parts.strategy->local_steps();
  if (plan->automatic && parts.objective->has_rollouts()) {
    return loaded.Locate(
        FieldError("micro_batch_size",
                   "AUTO tries steps of batches as they are read, and this "
                   "objective trains on others (rollouts): set a number"),
        "batch");
  }
  if (plan->automatic && parts.device.gpu && train.sequence_parallel() > 1) {
    return loaded.Locate(
        FieldError("micro_batch_size",
                   "AUTO tries steps until one runs out of memory, which ranks "
                   "that share rows (train.sequence_parallel) can't on GPUs: "
                   "set a number"),
        "batch");
  }
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckForgotten(train, parts), "train"));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      CheckShares(*plan, MeshOf(train, world_size), parts), "batch"));
  const int64_t rows = parts.objective->rollout_plan().rows_per_sample;
  if (rows < 1 || plan->global_batch_size % rows != 0) {
    return loaded.Locate(
        FieldError(
            "global_batch_size",
            absl::StrCat("is ", plan->global_batch_size,
                         ", and the objective makes ", rows,
                         " rows of each sample: take a multiple of ", rows)),
        "batch");
  }
  const int64_t steps =
      StepsOfRun(train, EpochRows(parts), plan->global_batch_size);
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckRecomputedMlp(train, parts), "train"));
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
  request.deterministic = SumsExactly(train, parts);
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      CheckOptimizer(*parts.optimizer,
                     {request.model, request.precision, world_size}),
      "optimizer"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(parts.strategy->Check(request), "strategy"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckPagedState(train, parts, request), "train"));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(CheckGraphs(train, parts), "train"));
  for (const auto& [slot, data] : all) {
    CAPSTAN_RETURN_IF_ERROR(
        loaded.Locate(parts.objective->Check(*parts.model, *data),
                      slot == "train_data" ? "objective" : slot));
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckEvaluation(train, parts), "train"));
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckMetricNames(parts),
                    parts.eval_tasks == nullptr ? "eval_sets" : "eval_tasks"));
  if (config.has_hub_upload() && config.hub_upload().repo().empty()) {
    return loaded.Locate(FieldError("repo", "name it: NAME/REPOSITORY"),
                         "hub_upload");
  }
  CAPSTAN_RETURN_IF_ERROR(
      loaded.Locate(CheckSamplePrompts(train, parts), "train"));
  return plan;
}

}  // namespace capstan
