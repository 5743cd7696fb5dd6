// SPDX-License-Identifier: Apache-2.0
//
// transformers.TrainingArguments (src/transformers/training_args.py) and TRL's
// arguments (trl/trainer/{base,sft,dpo,model}_config.py, trl/scripts/utils.py).
#include "desk/import/transformers.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan::import {

// What SFT-Play reads of them, too.
const char kRunRows[] = R"(
learning_rate | optimizer.learning_rate | number
weight_decay | optimizer.weight_decay | number
optim | optimizer | adamw_torch=capstan.adamw adamw_torch_fused=capstan.adamw adamw_hf=capstan.adamw
  adamw_apex_fused=capstan.adamw adamw_anyprecision=! adamw_torch_4bit=!
  adamw_torch_8bit=capstan.adamw adamw_8bit=capstan.adamw adamw_bnb_8bit=capstan.adamw
  paged_adamw=capstan.adamw paged_adamw_32bit=capstan.adamw paged_adamw_8bit=capstan.adamw
  adafactor=capstan.adafactor sgd=capstan.sgd *=! | take capstan.adamw, adafactor, muon or sgd
optim | optimizer.state | adamw_8bit=EIGHT_BIT adamw_bnb_8bit=EIGHT_BIT adamw_torch_8bit=EIGHT_BIT
  paged_adamw_8bit=EIGHT_BIT *=-
warmup_steps | @warmup_steps | number
warmup_ratio | schedule.warmup_ratio | number
max_grad_norm | train.max_grad_norm | number
bf16 | @bf16 | flag
fp16 | @fp16 | flag
gradient_checkpointing | train.activation_checkpointing | true=EVERY_UNIT false=NONE
logging_steps | train.log_every | integer
eval_strategy evaluation_strategy | @eval_strategy | raw
eval_steps | @eval_steps | number
save_strategy | @save_strategy | raw
save_steps | @save_steps | number
save_total_limit | train.keep_checkpoints | integer
load_best_model_at_end | train.keep_best | true=true false=-
resume_from_checkpoint | train.resume | auto=AUTO true=AUTO false=- *=! | another program's
  checkpoint isn't resumed; `trainer convert` reads its weights
output_dir | | | ours is runs/NAME/TIME, or output_dir
metric_for_best_model | @best_metric | raw
greater_is_better | @greater | flag
neftune_noise_alpha | @noise | number
ddp_bucket_cap_mb dataloader_num_workers run_name
)";

const char kTrainingArguments[] = R"(
model_name_or_path | @model | raw
per_device_train_batch_size | @micro | positive
gradient_accumulation_steps | @accumulation | integer
num_train_epochs | train.max_epochs | number
max_steps | @max_steps | integer
adam_beta1 | optimizer.beta1 | number
adam_beta2 | optimizer.beta2 | number
adam_epsilon | optimizer.epsilon | number
lr_scheduler_type | schedule.kind | linear=LINEAR cosine=COSINE cosine_with_min_lr=COSINE
  constant=CONSTANT constant_with_warmup=CONSTANT *=! | take linear, cosine or constant_with_warmup;
  docs/schedules.md has others
lr_scheduler_kwargs.min_lr_rate lr_scheduler_kwargs.min_lr_ratio | schedule.min_ratio | number
lr_scheduler_kwargs.min_lr | @min_lr | number
lr_scheduler_kwargs lr_scheduler_kwargs.* | | lost | docs/schedules.md
seed | train.seed | count
tf32 | train.tf32 | flag
group_by_length | batch.group_by_length | true=true false=-
train_sampling_strategy | batch.group_by_length | random=- sequential=- group_by_length=true *=! |
  take random
train_sampling_strategy | @no_shuffle | sequential=true *=-
push_to_hub hub_model_id | | | hub_upload.repo uploads final/
fsdp | @fsdp | raw
fsdp_config.* | | | units are the model's layers
label_smoothing_factor | @smoothing | number
average_tokens_across_devices | | true=- *=! | the mean is over all tokens of all ranks
optim_args optim_target_modules | | lost | set the optimizer's fields
parallelism_config.* | | lost | set the strategy (docs/strategies.md)
auto_find_batch_size | | lost | set batch.micro_batch_size: AUTO
dataloader_drop_last | | false=- *=! | each sample is used; leave it out
full_determinism | train.deterministic | true=true false=-
data_seed | | | the order of samples follows train.seed
trust_remote_code | | | no model's code is run: its family must be known (docs/models.md)
deepspeed config fsdp_config torch_compile use_liger_kernel gradient_checkpointing_kwargs.*
  gradient_checkpointing_kwargs per_device_eval_batch_size eval_accumulation_steps eval_on_start
  eval_delay do_train do_eval do_predict predict_with_generate overwrite_output_dir logging_dir
  logging_strategy logging_first_step log_level report_to project trackio_space_id save_only_model
  save_safetensors dataloader_pin_memory dataloader_prefetch_factor remove_unused_columns
  ddp_timeout ddp_backend ddp_find_unused_parameters hub_token hub_strategy hub_private_repo
  disable_tqdm include_num_input_tokens_seen include_tokens_per_second torch_empty_cache_steps
  local_rank no_cuda use_cpu cache_dir accelerator_config.* accelerator_config batch_eval_metrics
  bf16_full_eval dataloader_in_order dataloader_multiprocessing_context
  dataloader_persistent_workers ddp_broadcast_buffers ddp_static_graph debug enable_jit_checkpoint
  eval_do_concat_batches eval_use_gather_object fp16_full_eval hub_always_push hub_revision
  ignore_data_skip include_for_metrics label_names length_column_name liger_kernel_config.*
  log_level_replica log_on_each_node logging_nan_inf_filter prediction_loss_only
  restore_callback_states_from_checkpoint save_on_each_node skip_memory_metrics
  torch_compile_backend torch_compile_mode trackio_bucket_id trackio_static_space_id use_cache
)";

const char kTrainerDefaults[] =
    "per_device_train_batch_size=8 gradient_accumulation_steps=1 "
    "num_train_epochs=3 weight_decay=0 adam_beta1=0.9 adam_beta2=0.999 "
    "adam_epsilon=1e-8 optim=adamw_torch_fused "
    "lr_scheduler_type=linear max_grad_norm=1.0 seed=42 "
    "logging_steps=500 save_steps=500";

const char kLoraRows[] = R"(
lora_r lora_rank | @rank | positive
lora_alpha | @alpha | number
lora_dropout | @dropout | number
lora_target_modules lora_target | @target_modules | list
lora_modules_to_save additional_target | @modules_to_save | list
use_rslora peft_use_rslora | @rslora | true=true false=-
use_dora peft_use_dora | @dora | true=true false=-
lora_target_parameters | | lost | modules are adapted, not parameters
load_in_4bit quantize_base use_4bit_quantization | @four_bit | flag
load_in_8bit use_8bit_quantization | | lost | 4 bits or none; take load_in_4bit
bnb_4bit_quant_type quantization_type | | nf4=- *=! | take nf4
use_bnb_nested_quant use_nested_quant double_quantization
  bnb_config_kwargs.bnb_4bit_use_double_quant | @double_quant | flag
)";

const char kPairRows[] = R"(
loss_type pref_loss dpo_loss_type | @loss_type | nll=nll chunked_nll=nll dft=~nll sigmoid=SIGMOID ipo=IPO
  [sigmoid]=SIGMOID [ipo]=IPO grpo=GRPO bnpo=DAPO dapo=DAPO dr_grpo=DR_GRPO cispo=CISPO sapo=SAPO luspo=LUSPO
  vespo=VESPO orpo=ORPO simpo=SIMPO kto=KTO apo_zero_unpaired=APO_ZERO_UNPAIRED *=!
  | take sigmoid, ipo, orpo or simpo, or of texts nll
beta pref_beta rl_beta orpo_alpha | objective.beta | number
label_smoothing dpo_label_smoothing | objective.label_smoothing | number
simpo_gamma | objective.simpo_gamma | number
desirable_weight kto_chosen_weight kto_desirable_weight | objective.desirable_weight | number
undesirable_weight kto_rejected_weight kto_undesirable_weight | objective.undesirable_weight |
  number
center_rewards_coefficient | @center | number
rpo_alpha pref_ftx | | lost | no term of the chosen answer's likelihood
)";

namespace {

const char kTrlRows[] = R"(
# Of how trl launches itself (TRL's docs/source/clis.md).
num_processes | @processes | integer
num_machines | @machines | integer
accelerate_config | @distributed | single_gpu=single multi_gpu=ddp fsdp1=fsdp fsdp2=fsdp
  zero1=deepspeed zero2=deepspeed zero3=deepspeed
accelerate_config | @zero_stage | zero1=1 zero2=2 zero3=3 *=-
model_revision | | main=- *=! | write hf:OWNER/NAME@REVISION
dtype torch_dtype | @weights | raw
model_init_kwargs.* | | lost | the folder's config.json says all
dataset_name | @dataset | raw
dataset_config | | lost | name the files: hf:OWNER/NAME/FOLDER/*.parquet
dataset_train_split | | train=- *=! | name the files: hf:OWNER/NAME/data/SPLIT*
dataset_test_split | | | eval_data, if it is to be measured
datasets[].path dataset_mixture.datasets[].id | @* | raw
datasets[].split dataset_mixture.datasets[].split | | train=- *=! | name the files:
  hf:OWNER/NAME/data/SPLIT*
dataset_mixture.datasets[].weight datasets[].fraction | | 1=- *=! | the part of the rows that is
  taken: cut the file
datasets[].name dataset_mixture.datasets[].config | | default=- *=! | name the files:
  hf:OWNER/NAME/FOLDER/*.parquet
datasets[].columns dataset_mixture.datasets[].columns | | | rows' other keys are ignored
dataset_mixture.seed | | | the order of samples follows train.seed
test_split_size dataset_mixture.test_split_size | @val_size | number
datasets[].* dataset_mixture.* | | lost | name the files in a source of train_data
dataset_text_field | | text=- *=! | rename the column to text
max_length max_seq_length | train_data.max_length | positive
truncation_mode | train_data.truncation | keep_start=- keep_end=KEEP_END *=! | take keep_start or
  keep_end
packing | @packing | flag
packing_strategy | @packing_strategy | bfd=BEST_FIT bfd_split=BEST_FIT_SPLIT wrapped=WRAPPED *=!
assistant_only_loss | train_data.loss_on | true=ASSISTANT false=-
completion_only_loss | @completion_only | flag
chat_template_path | @chat_template_path | raw
chat_template | | lost | write it to a file: train_data.chat_template_file
max_prompt_length | @max_prompt | positive
use_peft use_peft_lora | @adapter | true=lora false=-
chat_template_format | | none=- *=! | set chat_format, which adds the template's tokens
splits | | train=- train,test=- *=! | name the files: hf:OWNER/NAME/data/SPLIT*
lora_task_type | | causal_lm=- seq_cls=- *=!
precompute_ref_log_probs | | | `trainer dpo-reference` does that
sync_ref_model | | lost | the reference stays as it is
use_weighting | | lost | pairs weigh the same
ld_alpha | | lost | answers count in full length: leave it out
f_divergence_type | | reverse_kl=- *=! | take reverse_kl
loss_weights discopop_tau f_alpha_divergence_coef | | lost | docs/preference.md
disable_dropout | @disable_dropout | flag
eos_token | | lost | set it in the tokenizer's folder
pad_token | | | padding is never trained on
activation_offloading | train.offload.activations | true=true false=-
dataset_streaming | | | files are mapped
dataset_kwargs.* | | lost | docs/chat_data.md
router_aux_loss_coef | | | of mixtures of experts: their config.json says it (docs/models.md)
shuffle_dataset bnb_4bit_quant_storage padding_free pad_to_multiple_of eval_packing
  attn_implementation dataset_num_proc ignore_bias_buffers streaming precompute_ref_batch_size
  ref_model_mixup_alpha ref_model_sync_steps activation_checkpointing use_flash_attn use_unsloth
  use_reentrant bnb_4bit_compute_dtype bnb_4bit_quant_storage_dtype add_special_tokens
  append_concat_token hub_model_revision no_remove_unused_columns
)";

// GRPOConfig's and trl/scripts/grpo.py's, by the names of capstan.grpo's
// fields.
const char kGrpoRows[] = R"(
num_generations | @num_generations | positive
max_completion_length | @max_new_tokens | positive
scale_rewards | @advantage | group=GROUP_STD batch=BATCH_STD none=GROUP_MEAN true=GROUP_STD
  false=GROUP_MEAN *=! | take group, batch or none
epsilon | @clip_low | number
epsilon_high | @clip_high | number
delta | @clip_most | number
num_iterations | @updates_per_rollout | positive
importance_sampling_level | @sequence_ratios | token=- sequence=true *=! | take token or sequence
mask_truncated_completions | @mask_truncated | true=true false=-
use_bias_correction_kl | @unbiased_kl | true=true false=false
temperature | @temperature | number
top_k | @top_k | count
top_p | @top_p | number
min_p | @min_p | number
repetition_penalty | @repetition_penalty | number
reward_funcs | @reward_funcs | list
reward_weights | @reward_weights | list
reward_model_name_or_path | @reward_model | raw
steps_per_generation | @steps_per_generation | positive
generation_batch_size | @generation_batch | positive
top_entropy_quantile | | 1=- 1.0=- *=! | all tokens are trained on
entropy_coef | | 0=- 0.0=- *=! | there is no bonus for entropy
use_adaptive_entropy | | false=- *=! | there is no bonus for entropy
multi_objective_aggregation | | sum_then_normalize=- *=! | take sum_then_normalize
off_policy_mask_threshold | | lost | all answers are of the model that is trained
generation_kwargs.* | | lost | set objective's fields for sampling
sapo_temperature_neg | | 1.05=- *=! | take 1.05
sapo_temperature_pos | | 1=- 1.0=- *=! | take 1.0
vespo_k_pos vespo_lambda_neg | | 2=- 2.0=- *=! | take 2.0
vespo_lambda_pos vespo_k_neg | | 3=- 3.0=- *=! | take 3.0
max_tool_calling_iterations | | lost | set objective.tools (docs/grpo.md)
use_vllm vllm_* | | | the trainer samples, with the weights that it trains
use_transformers_continuous_batching transformers_continuous_batching_config.* cache_implementation
  num_generations_eval log_completions log_multimodal num_completions_to_print log_unique_prompts
  log_completions_hub_repo cast_lm_head_to_fp32 ds3_gather_for_generation use_transformers_paged
  entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
)";

// transformers' examples: run_clm.py and those that take its flags.
const char kScriptRows[] = R"(
train_file dataset_name | @dataset | raw
validation_file | @eval_dataset | raw
dataset_config_name | | lost | name the files: hf:OWNER/NAME/FOLDER/*.parquet
block_size | @block_size | positive
max_seq_length | train_data.max_length | positive
tokenizer_name | @tokenizer | raw
validation_split_percentage | @held_back | number
num_warmup_steps | @warmup_steps | number
torch_dtype dtype | @weights | raw
preprocessing_num_workers overwrite_cache use_fast_tokenizer with_tracking
)";

// Which rows TRL reads, and what of them it trains on.
void FinishRows(Draft* draft) {
  for (int i = 0;; ++i) {
    const std::string key =
        absl::StrCat("dataset_mixture.datasets[", i, "].id");
    if (!draft->Has("@" + key)) break;
    draft->sources.push_back(
        {draft->Path(draft->Text("@" + key)), "", "", key});
  }
  if (draft->nulls.count("max_length") > 0) {
    draft->DropDefault("train_data.max_length");
  }
  if (draft->Has("@completion_only")) {
    const bool only = draft->Flag("@completion_only");
    if (!draft->Has("train_data.loss_on")) {
      draft->Set("train_data.loss_on", only ? "COMPLETION" : "ALL",
                 "completion_only_loss");
    } else if (only) {
      draft->Note(Effect::kDiffers, "completion_only_loss", "true", "",
                  "not taken: TRL trains on what both choose; here "
                  "assistant_only_loss goes first");
    }
  }
}

// The trainer of TRL's that `program` runs, if it isn't here; else "". A
// script's name may be its user's own, so that ordinary words count only as
// TRL's commands and scripts.
std::string OtherTrainer(const std::string& program) {
  for (const char* const name : {"gspo", "rloo", "gkd", "bco", "nash",
                                 "online_dpo", "online-dpo", "onlinedpo"}) {
    if (absl::StrContains(program, name)) return name;
  }
  const std::vector<std::string> words =
      absl::StrSplit(program, absl::ByAnyChar("_-. "));
  for (const std::string& word : words) {
    for (const char* const name :
         {"xpo", "cpo", "tpo", "mpo", "prm", "sdft", "sdpo"}) {
      if (word == name) return name;
    }
    // "support" has it, too.
    if (absl::StartsWith(word, "ppo")) return "ppo";
  }
  for (const char* const name :
       {"gold", "online", "ssd", "distillation", "minillm"}) {
    if (program == absl::StrCat("trl ", name) ||
        program == absl::StrCat(name, ".py")) {
      return name;
    }
  }
  return "";
}

// Whether the files are GRPOTrainer's.
bool IsGrpo(const Draft& draft) {
  static constexpr absl::string_view kLosses[] = {
      "GRPO", "DAPO", "DR_GRPO", "CISPO", "SAPO", "LUSPO", "VESPO"};
  static constexpr const char* kFacts[] = {"@num_generations", "@reward_funcs",
                                           "@advantage", "@clip_low",
                                           "@updates_per_rollout"};
  return absl::StrContains(draft.program, "grpo") ||
         absl::c_linear_search(kLosses, draft.Text("@loss_type")) ||
         absl::c_any_of(kFacts,
                        [&draft](const char* fact) { return draft.Has(fact); });
}

void FinishGrpo(Draft* draft) {
  draft->Set("@method", "grpo",
             draft->program.empty() ? "TRL" : draft->program);
  draft->DropDefault("optimizer.learning_rate");
  draft->DropDefault("train_data.max_length");
  draft->Apply(kTrl, {"learning_rate", "1e-6"}, true);
  draft->Apply(kTrl, {"max_completion_length", "512"}, true);
  FinishRows(draft);
}

void FinishTrl(Draft* draft) {
  const std::string& program = draft->program;
  // What the files have that TRL's names stand for.
  if (draft->Has("@distributed") &&
      draft->Origin("@distributed") == "accelerate_config") {
    draft->Apply(
        kTrl,
        {"num_processes", draft->Text("@distributed") == "single" ? "1" : "8"},
        true);
  }
  const std::string loss = draft->Text("@loss_type");
  // A loss that isn't here is one of pairs, too.
  const bool dpo =
      draft->Has("objective.beta") || absl::StrContains(program, "dpo") ||
      (draft->HasLost("@loss_type") && !absl::StrContains(program, "sft")) ||
      (!loss.empty() && loss != "nll");
  const std::string other = OtherTrainer(program);
  if (!other.empty()) return draft->Set("@method", other, program);
  if (IsGrpo(*draft)) return FinishGrpo(draft);
  const bool reward = absl::StrContains(program, "reward");
  const bool orpo = absl::StrContains(program, "orpo");
  const bool kto = absl::StrContains(program, "kto") ||
                   draft->Has("objective.desirable_weight") || loss == "KTO" ||
                   loss == "APO_ZERO_UNPAIRED";
  const char* const method = reward ? "reward"
                             : kto  ? "kto"
                             : orpo ? "orpo"
                             : dpo  ? "dpo"
                                    : "sft";
  draft->Set("@method", method, program.empty() ? "TRL" : program);
  FinishRows(draft);
  if (absl::StrContains(program, "vlm")) {
    draft->Note(Effect::kLost, program, "", "", "images aren't read");
  }
  if (!dpo && !kto && !reward && !orpo) return;
  // The defaults of DPOConfig, KTOConfig, ORPOConfig and RewardConfig.
  draft->DropDefault("optimizer.learning_rate");
  draft->Apply(kTrl, {"learning_rate", reward ? "1e-4" : "1e-6"}, true);
  draft->Apply(kTrl, {"disable_dropout", "true"}, true);
  if (kto) draft->Apply(kTrl, {"train_sampling_strategy", "sequential"}, true);
}

// run_clm.py always makes blocks, as long as the tokenizer's texts may be but
// of 1024 tokens at most.
void FinishTransformers(Draft* draft) {
  if (absl::StartsWith(draft->program, "run_mlm") ||
      absl::StartsWith(draft->program, "run_plm")) {
    draft->Set("@method", draft->program, draft->program);
  }
  if (absl::StartsWith(draft->program, "run_clm") ||
      absl::EndsWith(draft->Text("@dataset"), ".txt")) {
    draft->Apply(kTransformers, {"block_size", "1024"}, true);
  }
  if (absl::StartsWith(draft->program, "run_clm") &&
      !draft->Has("@eval_dataset")) {
    const double percent = draft->Number("@held_back", 5);
    if (percent >= 100) {
      return draft->Lose("@held_back", "must be below 100");
    }
    if (percent == 0) return draft->NoteUnused("@held_back", "");
    draft->Set("@val_size", absl::StrCat(percent / 100),
               "validation_split_percentage");
    draft->Note(Effect::kDiffers, "validation_split_percentage",
                absl::StrCat(percent), "train_data.validation_fraction",
                "the first rows are held back there, none if the data set has "
                "a split \"validation\"; here others are");
  }
}

}  // namespace

const Peer kTrl = {
    "TRL",
    {"max_length", "assistant_only_loss", "completion_only_loss",
     "packing_strategy", "use_peft", "dataset_train_split", "beta", "loss_type",
     "lora_r", "packing", "max_seq_length", "dataset_name", "num_generations",
     "reward_funcs"},
    {{kTrlRows},
     {kGrpoRows},
     {kLoraRows},
     {kPairRows},
     {kRunRows},
     {kTrainingArguments}},
    "learning_rate=2e-5 bf16=true gradient_checkpointing=true "
    "max_length=1024 packing_strategy=bfd logging_steps=10 lora_r=16 "
    "lora_alpha=32 lora_dropout=0.05 "
    "lora_target_modules=[q_proj,v_proj]",
    FinishTrl,
    kTrainerDefaults};

const Peer kTransformers = {
    "transformers",
    {"model_name_or_path", "output_dir", "per_device_train_batch_size",
     "learning_rate", "train_file"},
    {{kScriptRows}, {kRunRows}, {kTrainingArguments}},
    "learning_rate=5e-5",
    FinishTransformers,
    kTrainerDefaults};

}  // namespace capstan::import
