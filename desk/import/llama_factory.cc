// SPDX-License-Identifier: Apache-2.0
//
// LLaMA-Factory's YAML (src/llamafactory/hparams/*.py); data sets by name from
// its dataset_info.json (data/README.md there).
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "desk/import/transformers.h"

namespace capstan::import {
namespace {

const char kLlamaFactoryRows[] = R"(
stage | @method | sft=sft pt=pt dpo=dpo *=*
finetuning_type | @adapter | lora=lora full=full *=! | take lora or full
adapter_name_or_path | @lora_folder | raw
create_new_adapter | | lost | training goes on with the adapter
pissa_init | | lost | LoRA starts as PEFT's does
loraplus_lr_ratio | | lost | one learning rate for A and B
quantization_bit | @four_bit | 4=true *=! | take 4 bits
quantization_method | | bnb=- bitsandbytes=- *=! | take bnb
template | train_data.chat_template | llama3="llama3" chatml="chatml" qwen3_nothink="chatml"
  gemma="gemma" *=! | the tokenizer's own is taken: see with `trainer data` whether it writes the
  same
default_system | | lost | write it into the rows
enable_thinking | train_data.chat_template_kwargs | true=- false='{"enable_thinking":false}'
dataset | @dataset_names | raw
eval_dataset | @eval_names | raw
dataset_dir | @dataset_dir | raw
cutoff_len | train_data.max_length | positive
train_on_prompt | train_data.loss_on | true=ALL false=-
mask_history | train_data.loss_on | true=COMPLETION false=-
max_samples | | lost | cut the file to its first rows
mix_strategy | | concat=- *=! | give the sources weights
interleave_probs | | lost | give the sources weights
val_size | @val_size | number
packing | @packing | flag
neat_packing | @neat_packing | flag
ref_model ref_model_adapters | | lost | `trainer dpo-reference` computes it
pure_bf16 | @pure_bf16 | flag
tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size
  expert_model_parallel_size | | 1=- *=! | no tensor or pipeline parallelism; take fsdp
mixed_precision | @mixed_precision | bf16_mixed=bf16 bf16=bf16 fp16_mixed=fp16 fp16=fp16 *=!
use_packed_sequences | | lost | take packing
sequence_parallel bias_activation_fusion apply_rope_fusion use_distributed_optimizer
  overlap_param_gather overlap_grad_reduce moe_grouped_gemm moe_token_dispatcher_type
  recompute_granularity | | | Megatron's way of computing the same
fp8 | @fp8 | flag
disable_gradient_checkpointing | train.activation_checkpointing | true=NONE false=EVERY_UNIT
rope_scaling | | lost | set it in the folder's config.json
add_tokens | add_tokens | list
add_special_tokens | add_special_tokens | list
train_from_scratch | | lost | model.config in place of pretrained begins with random weights
disable_shuffling | @no_shuffle | flag
early_stopping_steps | train.early_stopping_patience | integer
shift_attn | | lost | attention is whole
mixture_of_depths | | lost | all layers see all tokens
use_galore use_apollo use_badam use_adam_mini | | lost | take capstan.adamw
use_muon | | lost | take capstan.muon (docs/muon.md)
use_llama_pro | | lost | all layers are trained
use_dft_loss use_asft_loss use_eaft_loss | | lost | the loss is the cross-entropy
use_kt | | lost | no KTransformers
freeze_trainable_layers freeze_trainable_modules freeze_extra_modules oft_* module_dropout | | lost
  | they are for ways to train that aren't here: take lora or full
ld_alpha | | lost | answers count in full length: leave it out
pref_bco_weight | | lost | the loss has no part of BCO's: leave it out
use_hyper_parallel hyper_parallel_args hyper_parallel_cp_size megatron_bridge_args.* | | lost | set
  the strategy (docs/strategies.md)
split_special_tokens | | lost | special tokens are read as one
new_special_tokens_config init_special_tokens | | lost | a new token's row is random
model_revision | | main=- *=! | write hf:OWNER/NAME@REVISION
tool_format | | lost | the chat template writes tools
preserve_thinking | | lost | the chat template writes thoughts
ignore_pad_token_for_loss | | true=- *=! | padding is never trained on
adapter_folder | | lost | write the folder into adapter_name_or_path
moe_aux_loss_coef | | lost | set router_aux_loss_coef and output_router_logits in config.json
freeze_vision_tower freeze_multi_modal_projector | | | images aren't read
freeze_language_model | | lost | the language model is trained
model train_dataset model_class | @v1 | raw
image_* | | lost | images aren't read
video_* | | lost | videos aren't read
do_train | @do_train | flag
ray_num_workers | @processes | integer
export_dir infer_backend do_predict | @serves | raw
resize_vocab infer_* export_* preprocessing_num_workers preprocessing_batch_size overwrite_cache
  tokenized_path streaming flash_attn plot_loss use_unsloth use_unsloth_gc enable_liger_kernel
  use_reentrant_gc compute_accuracy upcast_layernorm use_fast_tokenizer low_cpu_mem_usage
  hf_hub_token use_swanlab swanlab_* ray_* fp8_* apollo_* badam_* galore_* asft_alpha eaft_alpha
  audio_sampling_rate block_diag_attn buffer_size compute_dtype crop_to_patches device_map
  data_shared_file_system enable_torch_profiler profile_modules profiler_* eval_num_beams
  eval_on_each_dataset include_effective_tokens_per_second kt_* loraplus_lr_embedding media_dir
  model_max_length ms_hub_token om_hub_token offload_folder pissa_convert pissa_iter ppo_*
  print_param_status quantization_device_map ref_model_quantization_bit reward_model*
  sglang_* upcast_lmhead_output use_audio_in_video use_kv_cache use_mca use_megatron_bridge
  use_v1_kernels vllm_*
master_addr | @ip | raw
master_port | @port | integer
)";

// Whether rows may call LLaMA-Factory's column `name` here, too.
bool IsRead(absl::string_view column, absl::string_view name,
            absl::string_view method) {
  if (column == "images" || column == "videos" || column == "audios") {
    return false;
  }
  if (column == "prompt") {
    return name == (method == "sft"  ? "instruction"
                    : method == "pt" ? "text"
                                     : "prompt");
  }
  if (column == "messages") {
    return name == "messages" || (name == "conversations" && method == "sft");
  }
  if (column == "query") return name == "input" || name == "context";
  if (column != "response") return name == column;
  return name == "output" || name == "response" || name == "answer" ||
         name == "target" || name == "completion";
}

// A name of dataset_info.json as a source.
void AddNamedSource(const std::string& name, const std::string& folder,
                    const Settings& info, std::vector<Source>* sources,
                    Draft* draft) {
  const std::string method = draft->Text("@method");
  std::string file, hub, formatting = "alpaca", other, part;
  for (const Setting& setting : info.settings) {
    const std::string prefix = absl::StrCat(name, ".");
    if (!absl::StartsWith(setting.key, prefix)) continue;
    const std::string key = setting.key.substr(prefix.size());
    absl::string_view column = key;
    if (key == "file_name") {
      file = setting.value;
    } else if (key == "hf_hub_url") {
      hub = setting.value;
    } else if (key == "formatting") {
      formatting = setting.value;
    } else if (key == "subset" || key == "num_samples" ||
               (key == "split" && setting.value != "train")) {
      absl::StrAppend(&part, part.empty() ? "" : ", ", key, ": ",
                      setting.value);
    } else if (absl::ConsumePrefix(&column, "columns.") &&
               !IsRead(column, setting.value, method)) {
      absl::StrAppend(&other, other.empty() ? "" : ", ", key, ": ",
                      setting.value);
    }
  }
  if (formatting == "sharegpt" && method != "sft" && method != "pt") {
    absl::StrAppend(&other, other.empty() ? "" : ", ", "formatting: sharegpt");
  }
  if (file.empty() && hub.empty()) {
    draft->Note(Effect::kLost, "dataset", name, "",
                "no dataset_info.json with a file of this name was found: run "
                "this in LLaMA-Factory's folder, or set train_data.path");
    return;
  }
  Source source{
      draft->Path(file.empty() ? hub : absl::StrCat(folder, "/", file)), "", "",
      absl::StrCat("dataset: ", name)};
  if (formatting == "sharegpt") source.kind = "SHAREGPT";
  if (formatting == "alpaca" && method == "sft") source.kind = "ALPACA";
  sources->push_back(source);
  if (!other.empty()) {
    draft->Note(Effect::kLost, absl::StrCat("dataset: ", name), other, "",
                "rename columns to those of docs/chat_data.md, of pairs "
                "docs/preference.md; images, videos and sounds aren't read");
  }
  if (!part.empty()) {
    draft->Note(Effect::kLost, absl::StrCat("dataset: ", name), part, "",
                "only these rows are taken there: name their files, or cut "
                "them");
  }
}

// The names of data sets, from the folder's dataset_info.json.
void FinishSources(Draft* draft) {
  const std::string given = draft->Text("@dataset_dir");
  const std::string found = draft->Find(
      absl::StrCat(given.empty() ? "data" : given, "/dataset_info.json"));
  Settings info;
  if (!found.empty()) {
    absl::StatusOr<Settings> read = ReadSettings(found);
    if (read.ok()) info = *std::move(read);
  }
  const auto add = [&](const std::string& names, std::vector<Source>* sources) {
    for (const absl::string_view name :
         absl::StrSplit(names, absl::ByAnyChar("[], "), absl::SkipEmpty())) {
      AddNamedSource(std::string(name), found.substr(0, found.rfind('/')), info,
                     sources, draft);
    }
  };
  add(draft->Text("@dataset_names"), &draft->sources);
  add(draft->Text("@eval_names"), &draft->eval_sources);
}

void FinishPacking(const std::string& method, Draft* draft) {
  if (method == "pt") {
    draft->Set("@packing_strategy", "WRAPPED", "stage: pt");
    if (!draft->Has("@packing")) draft->Set("@packing", "true", "stage: pt");
    draft->Erase("train_data.chat_template");
  } else {
    draft->Set("@packing_strategy", "BEST_FIT", "packing");
    if (draft->Flag("@packing") && !draft->Flag("@neat_packing")) {
      draft->Note(Effect::kDiffers, "packing", "true", "packing: BEST_FIT",
                  "without neat_packing rows of a pack attend to each other "
                  "there");
    }
    if (draft->Flag("@neat_packing")) {
      draft->Set("@packing", "true", "neat_packing");
    }
  }
}

void FinishLlamaFactory(Draft* draft) {
  if (draft->Has("@serves") && !draft->Flag("@do_train")) {
    draft->Set("@method", "a file that exports or predicts",
               draft->Origin("@serves"));
  }
  if (draft->Has("@v1")) {
    draft->Set("@method", "a file of LLaMA-Factory's v1", "stage");
    return;
  }
  if (draft->Text("@method") == "rm") {
    draft->Set("@method", "reward", "stage");
    draft->Differ("@method", "a score has a bias there, and a dropout of 0.1");
  }
  const std::string method = draft->Text("@method");
  FinishSources(draft);
  if (draft->Adapts()) {
    draft->Apply(kLlamaFactory,
                 {"lora_alpha", absl::StrCat(2 * draft->Number("@rank", 8))},
                 true);
  }
  if (draft->Flag("@pure_bf16")) {
    draft->Set("@mixed_precision", "bf16", "pure_bf16");
    draft->Set("@weights", "bfloat16", "pure_bf16");
  }
  // Of a long row the prompt and the answer are cut (infer_seqlen there).
  if (method != "pt") {
    draft->Note(Effect::kDiffers, "cutoff_len",
                draft->Text("train_data.max_length"), "",
                "of a longer row prompts and answers are both shortened there; "
                "here its end is cut");
  }
  if (absl::StrContains(draft->Text("@target_modules"), "\"all\"")) {
    draft->Set("@target_modules", "[\"all-linear\"]", "lora_target: all");
  }
  FinishPacking(method, draft);
  if (method == "sft" && !draft->Has("train_data.loss_on")) {
    draft->Set("train_data.loss_on", "ASSISTANT", "train_on_prompt: false");
  }
  const std::string turns = draft->Text("train_data.chat_template");
  if (method == "sft" && draft->Text("train_data.loss_on") != "ALL" &&
      (turns == "\"chatml\"" || turns == "\"gemma\"")) {
    draft->Differ("train_data.chat_template",
                  "LLaMA-Factory trains on the line break behind a turn, too");
  }
  if (method == "dpo" || method == "kto") {
    draft->Set("@disable_dropout", "true", "");
  }
}

}  // namespace

const Peer kLlamaFactory = {
    "LLaMA-Factory",
    {"stage", "finetuning_type", "cutoff_len", "lora_target", "template"},
    {{kLlamaFactoryRows},
     {kLoraRows},
     {kPairRows},
     {kRunRows},
     {kTrainingArguments}},
    "stage=sft finetuning_type=lora lora_rank=8 lora_dropout=0 "
    "lora_target=all double_quantization=true cutoff_len=2048 "
    "learning_rate=5e-5 disable_gradient_checkpointing=false",
    FinishLlamaFactory,
    kTrainerDefaults};

}  // namespace capstan::import
