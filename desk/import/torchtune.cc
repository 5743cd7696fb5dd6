// SPDX-License-Identifier: Apache-2.0
//
// torchtune's YAML (recipes/configs and recipes/*.py there): components are
// functions, by name, with their arguments.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "desk/import/transformers.h"

namespace capstan::import {
namespace {

const char kTorchtuneRows[] = R"(
output_dir | | | ours is runs/NAME/TIME, or output_dir
model._component_ | @component | raw
model.lora_attn_modules | @attention | raw
model.apply_lora_to_mlp | @mlp | flag
model.apply_lora_to_output | | lost | the head has no adapter; adapter.lora.modules_to_save trains
  it whole
model.decoder_trainable model.encoder_trainable model.fusion_trainable | | lost | all is trained,
  or an adapter
model.* | | lost | the folder's config.json says all
checkpointer.checkpoint_dir | @model | raw
checkpointer.* | | | the folder's files are found by their index
ref_checkpointer.* | | | the reference is the model that training starts from
tokenizer.max_seq_len | train_data.max_length | positive
tokenizer.prompt_template | | lost | write a template for it: train_data.chat_template_file
tokenizer._component_ | @turns | raw
tokenizer.* | | | the model's folder has its tokenizer
dataset._component_ | @component_of_data | raw
dataset.source | @source | raw
dataset.data_files | @data_files | raw
dataset.packed | train_data.packing | true=BEST_FIT false=NONE
dataset.train_on_input | @train_on_input | flag
dataset.split | | train=- *=! | name the files: hf:OWNER/NAME/data/SPLIT*, or set
  train_data.validation_fraction
dataset.conversation_column | | conversations=- messages=- *=! | rename the column to messages
dataset.conversation_style | | sharegpt=- openai=- *=!
dataset.column | | text=- *=! | rename the column to text
dataset.column_map.* | | lost | rename the columns
dataset.new_system_prompt | | lost | write it into the rows
dataset.* | | lost | docs/chat_data.md
dataset_val.* | | | eval_data, if it is to be measured
seed | train.seed | count
shuffle | @shuffle | flag
batch_size | @micro | positive
gradient_accumulation_steps | @accumulation | integer
epochs | train.max_epochs | integer
max_steps_per_epoch | @steps_per_epoch | integer
clip_grad_norm | train.max_grad_norm | number
optimizer._component_ | optimizer | torch.optim.adamw=capstan.adamw
  bitsandbytes.optim.pagedadamw=capstan.adamw bitsandbytes.optim.pagedadamw8bit=capstan.adamw
  bitsandbytes.optim.adamw8bit=capstan.adamw torch.optim.sgd=capstan.sgd
  torchao.optim.adamw8bit=capstan.adamw *=! | take torch.optim.AdamW
optimizer._component_ | optimizer.state | bitsandbytes.optim.pagedadamw8bit=EIGHT_BIT
  bitsandbytes.optim.adamw8bit=EIGHT_BIT torchao.optim.adamw8bit=EIGHT_BIT *=-
optimizer.lr | optimizer.learning_rate | number
optimizer.weight_decay | optimizer.weight_decay | number
optimizer.eps | optimizer.epsilon | number
optimizer.betas | @betas | raw
optimizer.momentum | optimizer.momentum | number
lr_scheduler._component_ | schedule.kind |
  torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup=COSINE *=! | docs/schedules.md
lr_scheduler.num_warmup_steps | schedule.warmup_steps | integer
lr_scheduler.* | | lost | docs/schedules.md
loss._component_ | @loss | torchtune.modules.loss.linearcrossentropyloss=sft
  torchtune.modules.loss.cewithchunkedoutputloss=sft torch.nn.crossentropyloss=sft
  torchtune.rlhf.loss.dpoloss=dpo *=*
loss.beta | objective.beta | number
loss.label_smoothing | objective.label_smoothing | number
loss.* | | lost | docs/preference.md
teacher_model.* teacher_checkpointer.* kd_loss.* kd_ratio | | lost | no distillation: the loss is
  the cross-entropy alone
dtype | @dtype | bf16=bf16 fp32=fp32 fp16=fp16 *=!
device | | | the run takes GPUs if there are any
enable_activation_checkpointing | train.activation_checkpointing | true=EVERY_UNIT false=NONE
enable_activation_offloading | train.offload.activations | true=true false=-
fsdp_cpu_offload fsdp.cpu_offload | @offload_param | true=CPU false=-
fsdp_reshard_after_forward | @fsdp_sharding | true=FULL_SHARD false=SHARD_GRAD_OP
fsdp_sharding_strategy | @fsdp_sharding | full_shard=FULL_SHARD shard_grad_op=SHARD_GRAD_OP
  no_shard=NO_SHARD *=!
tensor_parallel_dim | | 1=- *=! | no tensor parallelism; take fsdp
data_parallel_replicate_dim | @replicas | integer
log_every_n_steps | train.log_every | integer
resume_from_checkpoint | train.resume | false=- *=! | another program's checkpoint isn't resumed;
  `trainer convert` reads its weights
save_every_n_steps | train.save_every | integer
quantizer._component_ fake_quant_after_n_steps | | lost | no quantisation-aware training
config save_adapter_weights_only run_val_every_n_steps batch_size_val optimizer.fused
  optimizer_in_bwd loss.num_output_chunks tensor_parallel_plan._component_ data_parallel_shard_dim
  save_every_n_epochs custom_sharded_layers log_peak_memory_stats log_level low_cpu_ram compile name
  collate_fn ac_mode ac_option memory_efficient_fsdp_wrap metric_logger.* profiler.* quantizer.*
  quantizer
)";

// Names of the loss's and the model's functions say what the recipe trains.
void FinishTorchtuneModel(Draft* draft) {
  const std::string component = draft->Text("@component");
  const std::string name = component.substr(component.rfind('.') + 1);
  const bool lora = absl::StrContains(name, "lora_");
  for (const char* const other : {"vision", "flamingo", "classifier", "clip"}) {
    if (absl::StrContains(name, other)) {
      draft->Note(Effect::kLost, "model._component_", component, "",
                  "no decoder of texts alone");
    }
  }
  if (!lora) draft->DropDefault("@dropout");
  if (lora) {
    const bool quantised = absl::StartsWith(name, "qlora_");
    draft->Set("@adapter", quantised ? "qlora" : "lora", "model._component_");
    draft->Set("@double_quant", "true", "model._component_");
  }
  std::vector<std::string> targets;
  for (const absl::string_view module :
       absl::StrSplit(draft->Text("@attention"), absl::ByAnyChar("[], '\""),
                      absl::SkipEmpty())) {
    targets.push_back(
        absl::StrCat("\"", module == "output_proj" ? "o_proj" : module, "\""));
  }
  if (draft->Flag("@mlp")) {
    for (const char* const module : {"gate_proj", "up_proj", "down_proj"}) {
      targets.push_back(absl::StrCat("\"", module, "\""));
    }
  }
  if (lora) {
    draft->Set("@target_modules",
               absl::StrCat("[", absl::StrJoin(targets, ", "), "]"),
               "lora_attn_modules, apply_lora_to_mlp");
  }
}

// What a data set's function reads, its rows, and by default.
struct KnownData {
  const char* name;
  const char* source;  // its own
  const char* kind;
  const char* note;  // why what is trained differs; "": it doesn't
};
constexpr char kAlpacaPrompt[] =
    "torchtune writes Alpaca's own prompt into the user's turn, ours what the "
    "row says: make rows of messages whose user says it";
constexpr KnownData kKnownData[] = {
    {"alpaca_dataset", "tatsu-lab/alpaca", "ALPACA", kAlpacaPrompt},
    {"alpaca_cleaned_dataset", "yahma/alpaca-cleaned", "ALPACA", kAlpacaPrompt},
    {"chat_dataset", "", "", ""},
    {"instruct_dataset", "", "INPUT_TARGET", ""},
    {"slimorca_dataset", "Open-Orca/SlimOrca-Dedup", "SHAREGPT", ""},
    {"text_completion_dataset", "", "TEXT", ""},
    {"preference_dataset", "", "PREFERENCE", ""},
    {"stack_exchange_paired_dataset", "lvwerra/stack-exchange-paired",
     "PREFERENCE", "make its rows prompt, chosen and rejected"},
};

void FinishTorchtuneData(Draft* draft) {
  const std::string component = draft->Text("@component_of_data");
  const std::string name = component.substr(component.rfind('.') + 1);
  for (const KnownData& known : kKnownData) {
    if (name != known.name) continue;
    const std::string given = draft->Text("@source");
    const std::string files = draft->Text("@data_files");
    const std::string path = !files.empty()   ? files
                             : !given.empty() ? given
                                              : known.source;
    draft->sources.push_back(
        {draft->Path(path), known.kind, "", "dataset._component_"});
    if (known.note[0] != 0) {
      draft->Note(Effect::kDiffers, "dataset._component_", component,
                  absl::StrCat("kind: ", known.kind), known.note);
    }
    const bool all = draft->Has("@train_on_input")
                         ? draft->Flag("@train_on_input")
                         : absl::StartsWith(name, "alpaca");
    const bool turns = absl::string_view(known.kind) != "TEXT";
    // Llama 3's is as its chat template is.
    if (turns && draft->Has("@turns") &&
        !absl::StrContains(draft->Text("@component"), ".llama3.")) {
      draft->Differ("@turns",
                    "torchtune writes turns in its own way: see with `trainer "
                    "data` how the chat template here does");
    } else {
      draft->NoteUnused("@turns", "the model's folder has its tokenizer");
    }
    if (draft->Text("@method") == "sft" && turns) {
      draft->Set("train_data.loss_on", all ? "ALL" : "ASSISTANT",
                 "train_on_input");
      if (!all) {
        draft->Note(Effect::kDiffers, "dataset.train_on_input", "false", "",
                    "torchtune trains on what its tokenizer writes before an "
                    "answer, too, such as Llama 3's header");
      }
    }
    return;
  }
  draft->Note(Effect::kLost, "dataset._component_", component, "",
              "no data set that is known here: set train_data.path");
}

void FinishTorchtune(Draft* draft) {
  // torch.optim.SGD's own default is 0.
  if (draft->Text("optimizer") == "capstan.sgd") {
    draft->DropDefault("optimizer.weight_decay");
  }
  const std::string loss = draft->Text("@loss");
  // Recipes that generate, evaluate or quantise have none.
  draft->Set("@method",
             !draft->Has("optimizer") ? "a recipe without an optimizer"
             : loss.empty()           ? "sft"
                                      : loss.substr(loss.rfind('.') + 1),
             "loss._component_");
  FinishTorchtuneModel(draft);
  FinishTorchtuneData(draft);
  if (draft->Text("@dtype") != "fp32") {
    draft->Set("@mixed_precision", draft->Text("@dtype"), "dtype");
    draft->Note(Effect::kDiffers, "dtype", draft->Text("@dtype"), "precision",
                "torchtune keeps weights and optimizer state in 16 bits, too; "
                "here they are float32");
  }
  if (draft->Has("@steps_per_epoch")) {
    draft->Set("train.max_steps",
               absl::StrCat(
                   static_cast<int64_t>(draft->Number("@steps_per_epoch", 1) *
                                        draft->Number("train.max_epochs", 1))),
               "epochs * max_steps_per_epoch");
    draft->Erase("train.max_epochs");
  }
}

}  // namespace

const Peer kTorchtune = {
    "torchtune",
    {"model._component_", "checkpointer._component_", "tokenizer._component_",
     "optimizer._component_"},
    {{kTorchtuneRows}, {kLoraRows, "model."}},
    "epochs=1 gradient_accumulation_steps=1 optimizer.lr=1e-3 "
    "optimizer.weight_decay=0.01 optimizer.eps=1e-8 "
    "optimizer.betas=[0.9,0.999] clip_grad_norm=0 "
    "enable_activation_checkpointing=false model.lora_dropout=0",
    FinishTorchtune};

}  // namespace capstan::import
