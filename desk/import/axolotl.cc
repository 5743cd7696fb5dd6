// SPDX-License-Identifier: Apache-2.0
//
// axolotl's YAML (src/axolotl/utils/schemas/*.py; what it does by default in
// src/axolotl/core/builders/base.py).
#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "desk/import/resolve.h"
#include "desk/import/transformers.h"

namespace capstan::import {
namespace {

const char kAxolotlRows[] = R"(
base_model | @model | raw
base_model_config model_config.* overrides_of_model_config.* overrides_of_model_kwargs.*
  rope_scaling scaling_softmax | | lost | set it in the folder's config.json
revision_of_model | | lost | write hf:OWNER/NAME@REVISION
tokenizer_config | @tokenizer | raw
micro_batch_size | @micro | positive
gradient_accumulation_steps | @accumulation | integer
batch_size | @rank_batch | integer
num_epochs | train.max_epochs | number
optimizer | optimizer | adamw_torch=capstan.adamw adamw_torch_fused=capstan.adamw
  adamw_hf=capstan.adamw adamw_apex_fused=capstan.adamw adamw_anyprecision=! adamw_torch_4bit=!
  adamw_torch_8bit=capstan.adamw adamw_8bit=capstan.adamw adamw_bnb_8bit=capstan.adamw
  paged_adamw=capstan.adamw paged_adamw_32bit=capstan.adamw paged_adamw_8bit=capstan.adamw
  adafactor=capstan.adafactor sgd=capstan.sgd *=! | take adamw_torch_fused or adamw_bnb_8bit
optimizer | optimizer.state | adamw_8bit=EIGHT_BIT adamw_bnb_8bit=EIGHT_BIT
  adamw_torch_8bit=EIGHT_BIT paged_adamw_8bit=EIGHT_BIT *=-
lr_scheduler | schedule.kind | linear=LINEAR cosine=COSINE cosine_with_min_lr=COSINE
  constant=CONSTANT constant_with_warmup=CONSTANT *=! | take linear, cosine or constant_with_warmup
adam_eps | optimizer.epsilon | number
cosine_min_lr_ratio | schedule.min_ratio | number
cosine_constant_lr_ratio | | lost | the cosine ends with the run
bf16 | @bf16 | auto=true true=true full=true false=false
bfloat16 | @mixed_precision | true=bf16 *=-
bfloat16 | @weights | true=bfloat16 *=-
float16 | @mixed_precision | true=fp16 *=-
float16 | @weights | true=float16 *=-
tf32 | train.tf32 | auto=- true=true false=-
fp8 | @fp8 | flag
sequence_len | train_data.max_length | positive
sample_packing | train_data.packing | true=BEST_FIT false=NONE
gradient_checkpointing | train.activation_checkpointing | true=EVERY_UNIT false=- offload=EVERY_UNIT
  unsloth=EVERY_UNIT *=!
activation_offloading | train.offload.activations | true=true false=- legacy=true *=!
adapter | @adapter | lora=lora qlora=qlora *=! | take lora or qlora
lora_target_linear | @all_linear | flag
lora_model_dir | @lora_folder | raw
lora_fan_in_fan_out | | lost | weights are [out, in] here
unfrozen_parameters | | lost | all is trained, or an adapter
datasets[].path datasets[].type datasets[].data_files pretraining_dataset[].path | @* | raw
datasets[].split | | train=- *=! | name the files: hf:OWNER/NAME/data/SPLIT*, or cut a file of your
  own
datasets[].field_messages | | messages=- conversations=- *=! | rename the column to messages,
  that of pairs to prompt
datasets[].field pretraining_dataset[].text_column | | text=- *=! | rename the column to text
datasets[].field_chosen | | chosen=- *=! | rename the column
datasets[].field_rejected | | rejected=- *=! | rename the column
datasets[].message_property_mappings.role datasets[].message_field_role | | role=- from=- *=! |
  rename the key to role
datasets[].message_property_mappings.content datasets[].message_field_content | | content=- value=-
  *=! | rename the key to content
datasets[].roles.user | | user=- human=- *=! | rename the role
datasets[].roles.assistant | | assistant=- gpt=- *=! | rename the role
datasets[].roles.system | | system=-
datasets[].roles_to_train | | assistant=- gpt=- *=! | only the assistant's turns are trained on
datasets[].train_on_eos | | turn=- *=! | a turn's end is trained on with it
datasets[].field_thinking | | reasoning_content=- *=! | rename the key to reasoning_content
datasets[].* | | lost | docs/chat_data.md
pretraining_dataset | @datasets[0].path | raw
pretraining_dataset[].split | | train=- *=!
pretraining_dataset[].* | | lost | name the files: hf:OWNER/NAME/FOLDER/*.parquet
test_datasets[].path | @* | raw
test_datasets[].* | | | it is read as train_data is
val_set_size | @val_size | number
train_on_inputs | @train_on_inputs | flag
chat_template | train_data.chat_template | tokenizer_default=- chatml="chatml" llama3="llama3"
  gemma="gemma" *=! | the tokenizer's own is taken: see with `trainer data` whether it writes the
  same
chat_template_jinja | | lost | write it to a file: train_data.chat_template_file
default_system_message | | lost | write it into the rows
eot_tokens | | | the token that ends a turn is found in the template
special_tokens.pad_token | | | padding is never trained on
special_tokens.* | | lost | texts end and begin with the tokenizer's own: set it in its folder
tokens | add_tokens | list
added_tokens_overrides.* | | lost | take add_tokens
rl | @method | dpo=dpo ipo=ipo orpo=orpo simpo=simpo *=*
reward_model | @method | true=reward false=-
num_labels | | 1=- *=! | a reward model has one score
fsdp | @fsdp | raw
context_parallel_size sequence_parallel_degree | | 1=- *=! | set train.sequence_parallel by hand
  (docs/strategies.md)
tensor_parallel_size | | 1=- *=! | no tensor parallelism; take fsdp
expert_parallel_size | | 1=- *=! | no expert parallelism; take fsdp
dp_shard_size | @dp_shard | integer
dp_replicate_size | @replicas | integer
plugins | | axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin=-
  axolotl.integrations.liger.LigerPlugin=- axolotl.integrations.kernels.KernelsPlugin=-
  axolotl.integrations.swanlab.SwanLabPlugin=- axolotl.integrations.lm_eval.LMEvalPlugin=-
  axolotl.integrations.expert_parallel.ExpertParallelPlugin=- *=! | what the plugin adds isn't here
early_stopping_patience | train.early_stopping_patience | integer
group_by_length | batch.group_by_length | true=true false=-
shuffle_merged_datasets | @shuffle | flag
min_sample_len | | lost | drop short rows from the file
excess_length_strategy | @long_rows | truncate=truncate raise=raise drop=- *=! | take truncate
dataset_exact_deduplication | | lost | remove duplicates from the file
lr_quadratic_warmup | | lost | warm-up is linear
loss_watchdog_threshold | | | train.loss_spikes
gptq | | lost | 4 bits are NF4 here
qat.* | | lost | no quantisation-aware training
relora jagged_restart_steps | | lost | no ReLoRA
embedding_lr embedding_lr_scale loraplus_lr_ratio lr_groups lr_groups[].* | | lost | one learning
  rate for all
optim_args optim_args.* optim_target_modules | | lost | set the optimizer's fields
lisa_step_interval lisa_n_layers | | lost | all layers are trained
lora_rank_pattern.* lora_alpha_pattern.* | | lost | one rank and alpha for all modules
peft_layers_to_transform peft_layers_pattern | | lost | all layers are adapted
peft_layer_replication | | lost | layers are trained as they are
peft_trainable_token_indices | | lost | embeddings are trained whole (lora_modules_to_save)
peft_init_lora_weights | | true=- *=! | A is random and B is 0
peft.* loftq_config.* | | lost | LoRA starts as PEFT's does by default
dataset_shard_num datasets[].shards | | lost | cut the file
max_prompt_len | | lost | prompt and answer are cut as one text, after sequence_len
model_quantization_config model_quantization_config_kwargs.* | | lost | 4 bits are NF4 here
chat_template_kwargs.* | | lost | write them as JSON: train_data.chat_template_kwargs
dpo_beta | | lost | write rl_beta
dpo_loss_weights dpo_norm_loss dpo_use_weighting cpo_alpha | | lost | the loss is one, and pairs
  weigh the same: leave it out
pretrain_multipack_attn | | true=- *=! | texts of a pack don't see each other
fix_untrained_tokens | | lost | their rows stay as they are
use_eaft use_onebitllms use_pose s2_attention trainer_cls | | lost | it isn't here; leave it out
tokenizer_use_mistral_common | | lost | tokens are those of the folder's tokenizer.json
role_boundaries[].* | | lost | turns are found in the chat template: leave it out
pretraining_sample_concatenation | | lost | texts are packed as train_data.packing says
trl.* | | lost | they are for learning from rollouts, which isn't here
process_reward_model | @method | true=prm false=-
curriculum_sampling | @no_shuffle | flag
noisy_embedding_alpha | @noise | number
quantize_moe_experts | | lost | experts aren't quantised
reinit_weights | | lost | model.config in place of pretrained begins with random weights
resize_token_embeddings_to_32x | | | rows that no token has are never trained
tokens.* | | lost | set them in the tokenizer's folder
processor_type | | lost | images and sounds aren't read
evals_per_epoch | | | train.eval_every counts steps
saves_per_epoch | | | train.save_every counts steps
ray_num_workers | @processes | integer
skip_prepare_dataset | @raw_rows | flag
auto_resume_from_checkpoints | train.resume | true=AUTO false=-
fsdp_config.* | | | units are the model's layers
model_type tokenizer_type datasets[].ds_type datasets pretraining_dataset[].type fsdp_version
  loss_watchdog_patience use_scattermoe use_sonicmoe experts_implementation use_kernels launcher
  torch_compile_* use_ray ray_* use_wandb lora_mlp_kernel lora_qkv_kernel lora_o_kernel liger_*
  wandb_* swanlab_* mlflow_* comet_* trackio_* flash_* flex_attn_compile_kwargs.*
  dataset_prepared_path dataset_processes push_dataset_to_hub hf_use_auth_token
  attn_implementation sdp_attention xformers_attention cut_cross_entropy eval_sample_packing
  eval_batch_size eval_table_size save_first_step pad_to_sequence_len max_packed_sequence_len
  sample_packing_* streaming strict debug device_map use_tensorboard use_swanlab tokenizer_use_fast
  tokenizer_legacy torchdistx_path low_cpu_mem_usage experimental_skip_move_to_device gptq_*
  special_tokens accelerator_config adam_beta3 adam_epsilon2 axolotl_config_path batch_flattening
  bench_* chunked_cross_entropy chunked_cross_entropy_num_chunks cls_model_config
  dataset_keep_in_memory dataset_num_proc dataset_shard_idx datasets[].shards_idx ddp
  ddp_broadcast_buffers deepcompile device dion_* do_bench_eval do_causal_lm_eval
  dpo_generate_during_eval dpo_padding_free dpo_use_liger_kernel dpo_use_logits_to_keep
  dynamic_checkpoint.* eaft_alpha eaft_k eager_attention ebft.* embeddings_skip_upcast
  eval_causal_lm_metrics eval_max_new_tokens eval_sequence_len flex_attention float32
  fp32_norm_classes fp32_norms fp8_enable_fsdp_float8_all_gather freeze_mm_modules
  fsdp_final_state_dict_type fused_attn_kernel gc_collect_steps gc_steps gemma4_hybrid_attn_impl
  generate_samples generation_* gpu_memory_limit gradio_* heads_k_stride
  hf_mlflow_log_artifacts hub_revision image_* include_tkps is_* jagged_restart_anneal_steps
  jagged_restart_warmup_steps large_head_attention layer_offloading lisa_layers_attribute
  llama4_linearized_experts lora_embedding_kernel lora_on_cpu loraplus_lr_embedding lr_div_factor
  max_memory.* mean_resizing_embeddings merge_lora merge_method multipack_real_batches
  num_dataset_shards_to_save num_generation_samples nvfp4_merge_aware otel_* pad_to_multiple_of
  peft_autocast_adapter_dtype peft_ensure_weight_tying pose_* precompute_ref_log_probs
  preprocess_iterable pretrain_multipack_buffer_size processor_kwargs.*
  profiler_steps profiler_steps_start qgalore_* qlora_sharded_model_loading quantization.*
  relora_* resources_per_worker.* ring_attn_func sage_attention scaling_softmax_* sdpa_varlen
  selective_checkpointing selective_checkpointing.* shrink_embeddings
  shuffle_before_merging_datasets streaming_multipack_buffer_size tiled_mlp tiled_mlp_num_shards
  tiled_mlp_use_original_mlp tokenizer_save_jinja_files type_of_model use_comet use_mlflow
  use_otel_metrics use_trackio vllm.* world_size
)";

// What `type` says of a data set's rows, and whether they are written alike.
void AddAxolotlSource(const std::string& key, Draft* draft) {
  const std::string path = draft->Text(absl::StrCat("@", key, ".path"));
  const std::string type = draft->Text(absl::StrCat("@", key, ".type"));
  const std::string files = draft->Text(absl::StrCat("@", key, ".data_files"));
  // A program that reads the files, or where they are.
  static constexpr absl::string_view kLoaders[] = {"json", "csv", "parquet",
                                                   "arrow", "text"};
  const bool loader = absl::c_linear_search(kLoaders, path);
  Source source{loader ? path : draft->Path(path), "", "",
                absl::StrCat(key, ".path")};
  if (!files.empty()) {
    const bool list = files[0] == '[';
    const std::string file =
        list ? files.substr(1, files.find_first_of(",]") - 1) : files;
    source.path = absl::StartsWith(source.path, "hf:")
                      ? absl::StrCat(source.path, "/", file)
                      : draft->FilePath(file);
    if (absl::StrContains(files, ',')) {
      draft->Note(Effect::kLost, absl::StrCat(key, ".data_files"), files, "",
                  "one file of a source is taken; name them by a pattern");
    }
  }
  if (absl::StrContains(key, "pretraining") || type == "completion") {
    source.kind = "TEXT";
    source.loss_on = "ALL";
  } else if (IsPreference(draft->Text("@method"))) {
    if (type.empty()) return draft->sources.push_back(source);
    if (absl::StrContains(type, "chat_template")) {
      draft->Note(Effect::kDiffers, absl::StrCat(key, ".type"), type, "",
                  "rows are read by their keys: look at them with `trainer "
                  "data`");
      return draft->sources.push_back(source);
    }
    draft->Note(Effect::kLost, absl::StrCat(key, ".type"), type, "",
                "make its rows prompt, chosen and rejected, or of kto prompt, "
                "completion and label (docs/preference.md)");
  } else if (absl::StartsWith(type, "alpaca")) {
    source.kind = "ALPACA";
    draft->Note(Effect::kDiffers, absl::StrCat(key, ".type"), type,
                "kind: ALPACA",
                "axolotl writes Alpaca's own prompt, ours the chat template: "
                "make rows of prompt and completion to keep it");
  } else if (!absl::StartsWith(type, "chat_template") && !type.empty()) {
    draft->Note(Effect::kLost, absl::StrCat(key, ".type"), type, "",
                "rows of this type aren't known here; make them messages, or "
                "prompt and completion");
  }
  draft->sources.push_back(source);
}

// Rows longer than sequence_len: texts are split, others are dropped.
void FinishLongRows(Draft* draft) {
  bool texts = false, others = false;
  for (const Source& source : draft->sources) {
    (source.kind == "TEXT" ? texts : others) = true;
  }
  const bool pretraining = draft->Has("@pretraining_dataset[0].path");
  if (texts && !others && draft->Text("train_data.packing") == "BEST_FIT") {
    draft->Set("train_data.packing", "BEST_FIT_SPLIT", "sample_packing");
    if (pretraining) {
      draft->Differ("train_data.packing",
                    "pieces of a long text overlap there, by 256 tokens, and "
                    "each has an end");
    }
    return;
  }
  if (pretraining) {
    draft->Differ("@pretraining_dataset[0].path",
                  "a text that isn't packed has no end there");
  } else if (texts) {
    draft->Note(Effect::kDiffers, "sequence_len",
                draft->Text("train_data.max_length"), "",
                "longer texts are split there and cut here: split them in the "
                "file, or take packing: BEST_FIT_SPLIT");
  }
  // A reward model's are cut there, too.
  const bool cut = draft->Text("@method") == "reward";
  if (others && !cut && !draft->Has("@long_rows")) {
    draft->Note(Effect::kDiffers, "excess_length_strategy", "drop", "",
                draft->Flag("@raw_rows")
                    ? "with skip_prepare_dataset longer rows are whole there, "
                      "and cut here: raise max_length"
                    : "longer rows are cut here: drop them from the file");
  }
}

// Steps go before the ratio, whose product is rounded down; 1 step is 2.
void FinishWarmup(Draft* draft) {
  const bool given = draft->Has("@warmup_steps");
  const double all = draft->Number("@max_steps", -1);
  double steps = draft->Number("@warmup_steps", 0);
  if (!given && all > 0) {
    steps = std::floor(draft->Number("schedule.warmup_ratio", 0) * all);
    if (draft->IsDefault("schedule.warmup_ratio"))
      steps = std::min(steps, 100.0);
  }
  if (steps == 1) steps = 2;
  if (given || all > 0) {
    draft->Set("@warmup_steps", absl::StrCat(steps),
               given ? "warmup_steps" : "warmup_ratio * max_steps");
    if (!given && !draft->IsDefault("schedule.warmup_ratio")) {
      draft->Note(Effect::kMapped, "warmup_ratio", "",
                  absl::StrCat("schedule.warmup_steps: ", steps),
                  "of max_steps, rounded down");
    }
    draft->DropDefault("schedule.warmup_ratio");
    draft->Erase("schedule.warmup_ratio");
  } else if (draft->Number("schedule.warmup_ratio", 0) > 0) {
    const bool capped = draft->IsDefault("schedule.warmup_ratio");
    draft->Note(capped ? Effect::kDiffers : Effect::kMapped, "warmup_ratio",
                draft->Raw("schedule.warmup_ratio"), "",
                capped ? "at most 100 steps there: set warmup_steps"
                       : "steps are rounded down there, here up");
  }
}

void FinishAxolotl(Draft* draft) {
  if (!draft->Has("@method")) draft->Set("@method", "sft", "axolotl");
  for (const char* const list : {"datasets", "pretraining_dataset"}) {
    for (int i = 0;; ++i) {
      const std::string key = absl::StrCat(list, "[", i, "]");
      if (!draft->Has(absl::StrCat("@", key, ".path"))) break;
      AddAxolotlSource(key, draft);
    }
  }
  FinishWarmup(draft);
  if (!draft->Has("@eval_strategy") && draft->Has("@eval_steps")) {
    draft->Set("@eval_strategy", "steps", "eval_steps");
  }
  if (draft->Has("@rank_batch") && draft->IsDefault("@accumulation")) {
    const double micro = std::max(1.0, draft->Number("@micro", 1));
    draft->DropDefault("@accumulation");
    draft->Set("@accumulation",
               absl::StrCat(static_cast<int64_t>(
                   std::max(1.0, draft->Number("@rank_batch", 1) / micro))),
               "batch_size / micro_batch_size");
  }
  FinishLongRows(draft);
  if (draft->Text("@method") == "sft") {
    draft->Set("train_data.loss_on",
               draft->Flag("@train_on_inputs") ? "ALL" : "ASSISTANT",
               "train_on_inputs");
  } else {
    draft->NoteUnused("@train_on_inputs", "");
    draft->Set("@disable_dropout", "true", "");
  }
  if (draft->Flag("@all_linear")) {
    draft->Set("@target_modules", "[\"all-linear\"]", "lora_target_linear");
  }
}

}  // namespace

const Peer kAxolotl = {
    "axolotl",
    {"base_model"},
    {{kAxolotlRows},
     {kLoraRows},
     {kPairRows},
     {kFsdpRows},
     {kRunRows},
     {kTrainingArguments}},
    "micro_batch_size=1 gradient_accumulation_steps=1 num_epochs=1 "
    "optimizer=adamw_torch_fused adam_beta1=0.9 adam_beta2=0.999 "
    "adam_epsilon=1e-8 weight_decay=0 lr_scheduler=cosine "
    "warmup_ratio=0.03 max_grad_norm=1.0 seed=42 bf16=auto "
    "sequence_len=512 train_on_inputs=false lora_dropout=0 "
    "bnb_config_kwargs.bnb_4bit_use_double_quant=true",
    FinishAxolotl};

}  // namespace capstan::import
