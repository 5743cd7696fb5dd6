// SPDX-License-Identifier: Apache-2.0
//
// What follows from several of a peer's settings together. Facts ("@micro")
// are those of draft.h's rows.
#include "desk/import/resolve.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace capstan::import {
namespace {

std::string Whole(double number) {
  return absl::StrCat(
      static_cast<int64_t>(std::min(std::max(number, -1e15), 1e15)));
}

// Whether files of others than these were read.
bool HasOthers(const std::vector<const Peer*>& these, const Draft& draft) {
  size_t count = 0;
  for (const Peer* const peer : these) count += draft.peers.count(peer->name);
  return draft.peers.size() > count;
}

absl::Status ResolveMethod(Draft* draft) {
  const std::string method =
      draft->Has("@method") ? draft->Text("@method") : "sft";
  const std::string origin = draft->Origin("@method");
  const bool texts = method == "sft" || method == "pt";
  if (texts || method == "reward") {
    draft->EraseAll("objective",
                    "beta label_smoothing simpo_gamma desirable_weight "
                    "undesirable_weight");
  }
  if (texts) {
    draft->Set("objective", "capstan.causal_lm", origin);
    draft->Copy("@smoothing", "objective.label_smoothing");
    draft->Copy("@noise", "objective.noise_alpha");
    return absl::OkStatus();
  }
  draft->NoteUnused("@smoothing",
                    "the loss of pairs is as label_smoothing says");
  if (draft->Number("@noise", 0) > 0) {
    draft->Lose("@noise", "no noise on embeddings of pairs; leave it out");
  }
  if (method == "grpo") {
    ResolveGrpo(origin, draft);
    return absl::OkStatus();
  }
  for (const char* const fact : {"@max_new_tokens", "@max_prompt"}) {
    if (!draft->Has(fact)) continue;
    draft->Lose(fact,
                "prompt and answer are cut as one text, after max_length");
  }
  if (method == "reward") {
    draft->Set("objective", "capstan.reward", origin);
    draft->Set("model.score_head", "true", origin);
    draft->Copy("@center", "objective.center_rewards_coefficient");
    return absl::OkStatus();
  }
  if (!IsPreference(method)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "\"", method,
        "\" can't be trained here: sft, pt (pre-training), dpo, "
        "ipo, orpo, simpo, kto, grpo and reward can; nothing is written"));
  }
  draft->Set("objective", "capstan.dpo", origin);
  const bool named = method == "dpo" || method == "kto";
  std::string loss =
      named ? draft->Text("@loss_type") : absl::AsciiStrToUpper(method);
  if (loss.empty()) loss = method == "kto" ? "KTO" : "SIGMOID";
  draft->Set(
      "objective.loss", loss,
      named && draft->Has("@loss_type") ? draft->Origin("@loss_type") : origin);
  if (!draft->Has("objective.beta")) {
    draft->Set("objective.beta", "0.1", "beta by default");
    draft->Note(Effect::kDefault, "beta", "0.1", "objective.beta: 0.1", "");
  }
  const bool reference = loss != "ORPO" && loss != "SIMPO";
  if (reference && !draft->Adapts()) {
    draft->SetQuoted("objective.reference", "pairs.reference",
                     "made by `trainer dpo-reference`");
  }
  return absl::OkStatus();
}

void ResolveModel(Draft* draft) {
  draft->Set("model", "capstan.decoder", "");
  if (!draft->Has("@model")) draft->Copy("@base", "@model");
  if (!draft->Has("@model")) {
    draft->Note(Effect::kLost, "the model", "", "model.pretrained",
                "no file names it: set model.pretrained");
    return;
  }
  draft->SetQuoted("model.pretrained", draft->Path(draft->Text("@model")),
                   draft->Origin("@model"));
}

absl::Status ResolveAdapter(Draft* draft) {
  if (draft->Origin("@adapter") == "peft_type" &&
      draft->Text("@adapter") != "lora") {
    return absl::FailedPreconditionError(
        absl::StrCat("peft_type: ", draft->Text("@adapter"),
                     " can't be trained here: of PEFT's adapters LoRA can; "
                     "nothing is written"));
  }
  if (!draft->Adapts()) {
    if (draft->Flag("@four_bit")) {
      draft->Lose("@four_bit", "a model in 4 bits is trained with an adapter");
    }
    for (const char* const fact :
         {"@rank", "@alpha", "@dropout", "@target_modules", "@modules_to_save",
          "@rslora", "@dora", "@double_quant", "@all_linear"}) {
      draft->NoteUnused(fact, "there is no adapter");
    }
    return absl::OkStatus();
  }
  if (draft->Has("@lora_folder")) {
    draft->SetQuoted("adapter.lora.pretrained",
                     draft->Path(draft->Text("@lora_folder")),
                     draft->Origin("@lora_folder"));
  } else {
    draft->CopyAll("adapter.lora",
                   "@rank @alpha @rslora @dora @modules_to_save");
    if (draft->Text("@target_modules").find_first_of("\\^$*(|") !=
        std::string::npos) {
      draft->Lose("@target_modules",
                  "modules are named by the ends of their names, not by "
                  "expressions");
    } else {
      draft->CopyAll("adapter.lora", "@target_modules");
    }
  }
  draft->CopyAll("adapter.lora", "@dropout");
  if (draft->Flag("@disable_dropout") &&
      draft->Number("adapter.lora.dropout", 0) != 0) {
    draft->Set("adapter.lora.dropout", "0", draft->Origin("@disable_dropout"));
    draft->NoteUnused("@dropout", "none while answers are compared");
  }
  const bool named = draft->Text("@adapter") == "qlora";
  if (named || draft->Flag("@four_bit")) {
    draft->Set("adapter.lora.quantize",
               draft->Flag("@double_quant") ? "NF4_DOUBLE" : "NF4",
               draft->Origins(
                   {named ? "@adapter" : "", "@four_bit", "@double_quant"}));
  }
  return absl::OkStatus();
}

// `adamw`: what isn't said is AdamW's.
void ResolveBetas(bool adamw, Draft* draft) {
  const std::vector<std::string> betas = absl::StrSplit(
      draft->Text("@betas"), absl::ByAnyChar("[](), "), absl::SkipEmpty());
  double number = 0.0;
  for (size_t i = 0; i < 2; ++i) {
    const std::string field = absl::StrCat("optimizer.beta", i + 1);
    if (betas.size() == 2 && absl::SimpleAtod(betas[i], &number)) {
      draft->Set(field, betas[i], draft->Origin("@betas"));
    } else if (adamw && !draft->Has(field)) {
      draft->Set(field, i == 0 ? "0.9" : "0.999", "by default");
    }
  }
}

void ResolveOptimizer(Draft* draft) {
  if (!draft->Has("optimizer")) {
    draft->Set("optimizer", "capstan.adamw", "by default");
  }
  const bool adamw = draft->Text("optimizer") == "capstan.adamw";
  ResolveBetas(adamw, draft);
  if (!adamw) draft->EraseAll("optimizer", "beta1 beta2 epsilon state");
  // transformers' Trainer spares norms and biases (get_decay_parameter_names).
  const bool spares = draft->peers.count(kTorchtune.name) == 0;
  if (spares && draft->Number("optimizer.weight_decay", 0) > 0 &&
      !draft->Has("adapter.lora.rank")) {
    draft->Differ("optimizer.weight_decay",
                  "norms and biases don't decay there, here all do");
  }
}

void ResolveSchedule(Draft* draft) {
  const double steps = draft->Number("@warmup_steps", 0);
  const std::string origin = draft->Origin("@warmup_steps");
  if (steps >= 1) {
    draft->Set("schedule.warmup_steps", Whole(steps), origin);
  } else if (steps > 0) {
    draft->Set("schedule.warmup_ratio", absl::StrCat(steps), origin);
  }
  if (steps >= 1 || draft->Has("schedule.warmup_steps") ||
      draft->Number("schedule.warmup_ratio", 0) == 0) {
    draft->Erase("schedule.warmup_ratio");
  }
  // transformers' "constant" has no warm-up, whatever is asked for.
  if (draft->Raw("schedule.kind") == "constant") {
    draft->EraseAll("schedule", "warmup_steps warmup_ratio");
  }
  const double least = draft->Number("@min_lr", 0);
  const double rate = draft->Number("optimizer.learning_rate", 0);
  if (least > 0 && rate > 0) {
    draft->Set("schedule.min_ratio", absl::StrCat(least / rate), "min_lr");
  }
}

// Ranks of all machines.
double ResolveLaunch(Draft* draft) {
  const double machines = std::max(1.0, draft->Number("@machines", 1));
  double ranks = draft->Number("@per_machine", 0) * machines;
  if (ranks < 1) ranks = draft->Number("@processes", 0);
  // DeepSpeed's batch is micro-batch times accumulation times ranks.
  if (ranks < 1 && draft->Has("@micro") && draft->Has("@accumulation")) {
    const double each =
        draft->Number("@micro", 1) * draft->Number("@accumulation", 1);
    const double whole = draft->Number("@train_batch", 0);
    if (each >= 1 && std::fmod(whole, each * machines) == 0) {
      ranks = whole / each;
    }
  }
  const bool known = ranks >= 1;
  if (!known) {
    ranks = machines;
    draft->Note(Effect::kDefault, "processes", "", "launch.processes: 1",
                draft->Has("@train_batch")
                    ? "no file says how many; with N set launch.processes: N"
                    : "no file says how many; with N set launch.processes: N "
                      "and batch.global_batch_size to N times that here");
  }
  if (std::fmod(ranks, machines) != 0) {
    draft->Note(Effect::kLost, "num_processes", Whole(ranks), "",
                "must be a multiple of num_machines");
  }
  draft->Set(
      "launch.processes", Whole(std::max(1.0, ranks / machines)),
      known ? draft->Origins({"@per_machine", "@processes", "@train_batch"})
            : "one process, since no file says more");
  if (machines > 1) {
    draft->Set("launch.nodes", Whole(machines), draft->Origin("@machines"));
    if (draft->Has("@ip")) {
      draft->SetQuoted(
          "launch.rendezvous",
          absl::StrCat(draft->Text("@ip"), ":",
                       draft->Has("@port") ? draft->Text("@port") : "29500"),
          draft->Origins({"@ip", "@port"}));
    }
  }
  const std::string gpus = draft->Text("@gpu_ids");
  if (!gpus.empty()) {
    if (gpus.find_first_not_of("0123456789,[] ") == gpus.npos) {
      const std::vector<absl::string_view> ids =
          absl::StrSplit(gpus, absl::ByAnyChar("[], "), absl::SkipEmpty());
      draft->Set("launch.gpu_ids",
                 absl::StrCat("[", absl::StrJoin(ids, ", "), "]"), "gpu_ids");
    } else {
      draft->Lose("@gpu_ids", "write numbers");
    }
  }
  return ranks;
}

void ResolveBatch(double ranks, Draft* draft) {
  const bool micro_known = draft->Has("@micro");
  const double accumulation = draft->Number("@accumulation", 1);
  double micro = draft->Number("@micro", 1);
  double whole = draft->Number("@train_batch", 0);
  std::string origin = "train_batch_size";
  if (whole < 1) {
    if (!micro_known) {
      if (accumulation > 1) {
        draft->Lose("@accumulation",
                    "no file says the micro-batch: set batch.global_batch_size "
                    "to its product with this and the processes");
      } else {
        draft->NoteUnused("@accumulation", "");
      }
      return;
    }
    whole = micro * accumulation * ranks;
    origin = absl::StrCat(draft->Origin("@micro"), " ", Whole(micro), " * ");
    if (draft->Has("@accumulation")) {
      absl::StrAppend(&origin, draft->Origin("@accumulation"), " ",
                      Whole(accumulation), " * ");
    }
    absl::StrAppend(&origin, "processes ", Whole(ranks));
  } else if (!micro_known) {
    micro = std::max(1.0, whole / (accumulation * ranks));
    origin = draft->Origins({"@train_batch", "@accumulation"});
  }
  if (whole > 1e9 || micro > 1e9 || std::fmod(whole, micro * ranks) != 0) {
    draft->Note(Effect::kLost, "batch", Whole(std::min(whole, 1e9)),
                "batch.global_batch_size",
                "must be micro-batch times accumulation times processes");
    return;
  }
  draft->Set("batch.micro_batch_size", Whole(micro),
             micro_known ? draft->Origin("@micro") : origin);
  draft->Set("batch.global_batch_size", Whole(whole), origin);
}

// Weights that are trained in the type in which they are loaded.
void ResolveWeights(Draft* draft) {
  if (draft->Adapts() || draft->Text("@weights") == "float32") {
    draft->NoteUnused("@weights", "");
  } else if (draft->Has("@weights")) {
    draft->Differ("@weights",
                  "weights and optimizer state are in 16 bits there, too; here "
                  "they are float32");
  }
}

// What fp16 is scaled by.
void NoteScaleUnused(Draft* draft) {
  for (const char* const fact :
       {"@scale_power", "@growth_interval", "@min_scale"}) {
    draft->NoteUnused(fact, "only precision capstan.fp16 reads it");
  }
}

void ResolvePrecision(Draft* draft) {
  std::string precision = "fp32", origin = "no mixed precision";
  const std::string mixed = draft->Text("@mixed_precision");
  if (draft->Flag("@fp16")) {
    precision = "fp16", origin = draft->Origin("@fp16");
  } else if (draft->Flag("@fp8")) {  // beside bf16
    precision = "fp8", origin = draft->Origin("@fp8");
  } else if (draft->Flag("@bf16")) {
    precision = "bf16", origin = draft->Origin("@bf16");
  } else if (mixed == "bf16" || mixed == "fp16" || mixed == "fp8") {
    precision = mixed, origin = draft->Origin("@mixed_precision");
  }
  draft->Set("precision", absl::StrCat("capstan.", precision), origin);
  if (precision != "fp16") return NoteScaleUnused(draft);
  if (draft->Has("@scale_power")) {
    const double power = draft->Number("@scale_power", 16);
    draft->Set("precision.initial_scale",
               absl::StrCat(std::exp2(std::min(std::max(power, 0.0), 32.0))),
               "fp16.initial_scale_power");
  }
  draft->CopyAll("precision", "@growth_interval @min_scale");
}

void ResolveZero(int stage, Draft* draft) {
  const std::string origin = draft->Origin("@zero_stage");
  const char* const kNames[] = {"capstan.ddp", "capstan.zero2", "capstan.zero2",
                                "capstan.fsdp"};
  if (stage < 0 || stage > 3) {
    draft->Note(Effect::kLost, origin, absl::StrCat(stage), "",
                "stages are 0 to 3");
    stage = 0;
  }
  draft->Set("strategy", kNames[stage], absl::StrCat(origin, ": ", stage));
  if (stage == 1 || stage == 2) {
    draft->CopyAll("strategy",
                   "@reduce_bucket_size @allgather_bucket_size @overlap_comm");
    draft->Copy("@offload_optimizer", "strategy.offload_optimizer.device");
    if (draft->Has("@offload_optimizer")) {
      draft->CopyAll("strategy.offload_optimizer", "@pin_memory");
    }
  } else if (stage == 3 && (draft->Has("@offload_param") ||
                            draft->Has("@offload_optimizer"))) {
    draft->Set("strategy.cpu_offload", "true",
               draft->Origins({"@offload_param", "@offload_optimizer"}));
  }
  if (stage == 1 || stage == 2) return;
  for (const char* const fact :
       {"@reduce_bucket_size", "@allgather_bucket_size", "@overlap_comm",
        "@pin_memory"}) {
    draft->NoteUnused(fact, "the strategy plans its own buffers");
  }
}

void ResolveStrategy(double ranks, Draft* draft) {
  const std::string kind = draft->Text("@distributed");
  const std::string fsdp = draft->Text("@fsdp");
  const bool torchtune = draft->peers.count(kTorchtune.name) > 0;
  if (draft->Has("@zero_stage")) {
    ResolveZero(static_cast<int>(draft->Number("@zero_stage", -1)), draft);
    return;
  }
  if (kind == "deepspeed") {
    // accelerate's own default.
    draft->Set("strategy", "capstan.zero2", "zero_stage: 2 by default");
    return;
  }
  std::string sharding = draft->Text("@fsdp_sharding");
  for (const char* const name : {"shard_grad_op", "no_shard", "hybrid_shard"}) {
    if (absl::StrContains(fsdp, name)) sharding = absl::AsciiStrToUpper(name);
  }
  const bool on = kind == "fsdp" || absl::StrContains(fsdp, "shard") ||
                  !sharding.empty() || draft->Has("@dp_shard") ||
                  (torchtune && (ranks > 1 || draft->Has("@offload_param")));
  if (!on || sharding == "NO_SHARD") {
    draft->Set("strategy", ranks > 1 ? "capstan.ddp" : "capstan.single",
               draft->Origins({"@distributed", "@fsdp_sharding"}));
    return;
  }
  draft->Set("strategy", "capstan.fsdp",
             draft->Origins({"@distributed", "@fsdp", "@fsdp_sharding"}));
  if (sharding == "SHARD_GRAD_OP") {
    draft->Set("strategy.reshard_after_forward", "false", sharding);
  }
  if (draft->Has("@offload_param") || absl::StrContains(fsdp, "offload")) {
    draft->Set("strategy.cpu_offload", "true",
               draft->Origins({"@offload_param", "@fsdp"}));
  }
  const double machines = std::max(1.0, draft->Number("@machines", 1));
  const double replicas =
      draft->Number("@replicas", sharding == "HYBRID_SHARD" ? machines : 1);
  if (replicas > 1 && std::fmod(ranks, replicas) == 0) {
    draft->Set("strategy.shard_group_size", Whole(ranks / replicas),
               "hybrid sharding");
  }
}

bool LearnsFromRewards(const Draft& draft) {
  return draft.Text("objective") == "capstan.grpo";
}

// What evaluations measure, here and there.
std::vector<std::string> MeasuredLosses(const Draft& draft) {
  if (LearnsFromRewards(draft)) return {"eval_reward"};
  std::vector<std::string> losses;
  std::string name;
  while (draft.Has(name = absl::StrCat("eval_sets#", losses.size(), ".name"))) {
    losses.push_back(absl::StrReplaceAll(
        absl::StrCat("eval_", draft.Text(name), "_loss"), {{"\"", ""}}));
  }
  if (losses.empty() || draft.Has("train_data.validation_fraction")) {
    losses.push_back("eval_loss");
  }
  return losses;
}

void ResolveBestMetric(Draft* draft) {
  const std::string named = draft->Text("@best_metric");
  const bool rewards = LearnsFromRewards(*draft);
  std::string metric = !named.empty() ? named : rewards ? "reward" : "loss";
  if (!absl::StartsWith(metric, "eval_")) metric = "eval_" + metric;
  // That of tokens is the exponential of their loss: the same is best.
  if (draft->Text("objective") == "capstan.causal_lm") {
    absl::StrReplaceAll({{"perplexity", "loss"}}, &metric);
  }
  const std::vector<std::string> measured = MeasuredLosses(*draft);
  const bool known = absl::c_linear_search(measured, metric);
  if (!named.empty() && !known) {
    draft->Lose("@best_metric",
                absl::StrCat("isn't measured here: set train.best_metric to ",
                             absl::StrJoin(measured, " or ")));
  } else if (metric == "eval_loss") {
    draft->NoteUnused("@best_metric", "");
  } else if (known && (!named.empty() || HasValidation(*draft))) {
    draft->SetQuoted("train.best_metric", metric,
                     draft->Origin("@best_metric"));
  }
  if (draft->Flag("@greater") && known && !rewards && HasValidation(*draft) &&
      (draft->Has("train.keep_best") ||
       draft->Has("train.early_stopping_patience"))) {
    draft->Differ("@greater", "of a loss lower is better here");
  } else {
    draft->NoteUnused("@greater", "");
  }
}

void ResolveTraining(Draft* draft) {
  if (draft->Number("@max_steps", -1) > 0) {
    draft->Copy("@max_steps", "train.max_steps");
    draft->Erase("train.max_epochs");
  }
  // Validation must be there; it doesn't change what is trained.
  const double every =
      draft->Number("@eval_steps", draft->Number("train.log_every", 0));
  if (draft->Text("@eval_strategy") == "steps" && HasValidation(*draft) &&
      every >= 1) {
    draft->Set("train.eval_every", Whole(every),
               draft->Origins({"@eval_strategy", "@eval_steps"}));
  } else {
    draft->NoteUnused("@eval_steps", "train.eval_every, with eval_data");
    draft->NoteUnused("@eval_strategy", "train.eval_every, with eval_data");
  }
  ResolveBestMetric(draft);
  const std::string saving = draft->Text("@save_strategy");
  if ((saving.empty() || saving == "steps") &&
      draft->Number("@save_steps", 0) >= 1) {
    draft->Set("train.save_every", Whole(draft->Number("@save_steps", 0)),
               draft->Origins({"@save_strategy", "@save_steps"}));
  } else {
    draft->NoteUnused("@save_steps", "train.save_every counts steps");
    draft->NoteUnused("@save_strategy", "train.save_every counts steps");
  }
  if (!HasValidation(*draft)) {
    for (const char* const field :
         {"train.keep_best", "train.early_stopping_patience",
          "train.best_metric"}) {
      if (!draft->Has(field)) continue;
      draft->Lose(field,
                  "needs validation: set eval_data, and then train.eval_every "
                  "and this");
      draft->Erase(field);
    }
  }
  if (draft->Has("train.early_stopping_patience") &&
      !draft->Has("train.eval_every")) {
    draft->Lose("train.early_stopping_patience",
                "counts evaluations: set train.eval_every");
  }
}

}  // namespace

absl::Status Resolve(Draft* draft) {
  // Launchers' files say nothing of what is trained.
  const bool launch_only = !HasOthers({&kAccelerate, &kDeepSpeed}, *draft);
  if (!launch_only) {
    CAPSTAN_RETURN_IF_ERROR(ResolveMethod(draft));
    ResolveModel(draft);
    CAPSTAN_RETURN_IF_ERROR(ResolveAdapter(draft));
    ResolveWeights(draft);
    ResolveData(draft);
    ResolveOptimizer(draft);
    ResolveSchedule(draft);
  } else if (draft->Has("optimizer")) {
    ResolveBetas(/*adamw=*/false, draft);
  }
  const double ranks = ResolveLaunch(draft);
  ResolveBatch(ranks, draft);
  ResolveGenerations(ranks, draft);
  if (!launch_only || draft->Has("@bf16") || draft->Has("@fp16") ||
      draft->Has("@mixed_precision")) {
    ResolvePrecision(draft);
  } else {
    NoteScaleUnused(draft);
  }
  ResolveStrategy(ranks, draft);
  if (!launch_only) ResolveTraining(draft);
  // Ours by default isn't theirs.
  if (HasOthers({&kAccelerate, &kDeepSpeed, &kPeft}, *draft)) {
    draft->Set("complete", "true", "");
  }
  return absl::OkStatus();
}

}  // namespace capstan::import
