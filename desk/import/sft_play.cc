// SPDX-License-Identifier: Apache-2.0
//
// SFT-Play's YAML: what its program reads of it, and what it doesn't.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "desk/import/transformers.h"

namespace capstan::import {
namespace {

const char kSftPlayRows[] = R"(
seed | train.seed | count
mode | | | SFT-Play reads task_mode
task_mode | @method | sft=sft cpt=pt *=! | give train_data a source for each kind, with weights
block_size | @block_size | positive
datasets[].path datasets[].type | @* | raw
datasets[].weight | @* | number
model.name | @model | raw
model.local_dir | @local_dir | raw
model.revision | | main=- *=! | write hf:OWNER/NAME@REVISION
model.type | | causal=- *=! | only decoders are trained here
model.max_seq_len | train_data.max_length | positive
tuning.mode | @adapter | qlora=qlora lora=lora full=full *=!
tuning.lora.r | @rank | positive
tuning.lora.alpha | @alpha | number
tuning.lora.dropout | @dropout | number
tuning.lora.target_modules | @target_modules |
  auto=["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"] *=*
train.epochs | train.max_epochs | number
train.lr | optimizer.learning_rate | number
train.steps train.lr_scheduler_type | | | SFT-Play doesn't read it
train.batch_size | @micro | raw
train.grad_accum | @accumulation | raw
train.target_tokens_per_device_step | @target_tokens | integer
data.template_path | | lost | train.py's prompts: it has system and user, not messages; write it for
  those, as train_data.chat_template_file
data.train_path | @dataset | raw
data.val_path | @eval_dataset | raw
include pack_factor datasets model.trust_remote_code tuning.backend data.format data.test_path
  run_name data.cache_dir datasets[].name train.dataloader_pin_memory train.report_to
  train.predict_with_generate train.generation_* train.eval_do_concat_batches
  train.eval_accumulation_steps train.ddp_find_unused_parameters train.ddp_broadcast_buffers
  train.final_eval final_eval data.split.* data.split logging.* eval.* gen.* infer.* merge.* style.*
  acceleration.*
)";

// "auto": as many samples as make target_tokens_per_device_step, which the
// program halves while they don't fit.
void FinishSftPlay(Draft* draft) {
  const double tokens = draft->Number("@target_tokens", 16384);
  const double length =
      std::max(1.0, draft->Number("train_data.max_length", 512));
  const bool automatic = draft->Raw("@micro") == "auto";
  const double micro = automatic ? std::max(1.0, std::floor(tokens / length))
                                 : draft->Number("@micro", 1);
  if (automatic) {
    draft->Set("@micro", absl::StrCat(static_cast<int64_t>(micro)),
               "train.batch_size: auto");
    draft->Note(Effect::kMapped, "train.batch_size", "auto",
                absl::StrCat("micro-batch of ", draft->Text("@micro")),
                "fewer if memory is short there: look at the batch it prints");
  }
  if (draft->Raw("@accumulation") == "auto") {
    draft->Set("@accumulation",
               absl::StrCat(static_cast<int64_t>(
                   std::max(1.0, std::ceil(tokens / (micro * length))))),
               "train.grad_accum: auto");
  }
  for (int i = 0;; ++i) {
    const std::string key = absl::StrCat("@datasets[", i, "]");
    if (!draft->Has(key + ".path")) break;
    draft->sources.push_back({draft->Path(draft->Text(key + ".path")),
                              draft->Text(key + ".type") == "cpt" ? "TEXT" : "",
                              draft->Text(key + ".weight"),
                              key.substr(1) + ".path"});
  }
  if (!draft->Has("@local_dir")) {
  } else if (draft->Find(draft->Text("@local_dir")).empty()) {
    draft->NoteUnused("@local_dir", "isn't there");
  } else {
    draft->Set("@model", draft->Text("@local_dir"), "model.local_dir");
  }
  if (draft->Text("@method") != "pt") {
    draft->NoteUnused("@block_size", "of task_mode: cpt");
    draft->Erase("@block_size");
  }
  draft->Set("schedule.kind", "LINEAR", "SFT-Play's, whatever its files say");
  draft->Set("@double_quant", "true", "tuning.mode: qlora");
  if (draft->Text("@method") == "sft") {
    draft->Set("train_data.loss_on", "COMPLETION",
               "labels are the last answer's");
  }
}

}  // namespace

const Peer kSftPlay = {
    "SFT-Play",
    {"tuning.mode", "include", "task_mode", "model.max_seq_len",
     "train.target_tokens_per_device_step", "data.train_path", "model.name"},
    {{kSftPlayRows}, {kRunRows, "train."}},
    "task_mode=sft seed=42 model.max_seq_len=512 tuning.lora.r=32 "
    "tuning.lora.alpha=64 tuning.lora.dropout=0.05 "
    "tuning.lora.target_modules=auto train.epochs=3 "
    "train.learning_rate=2e-4 train.weight_decay=0.01 "
    "train.warmup_ratio=0.06 train.optim=adamw_torch "
    "train.gradient_checkpointing=true train.batch_size=auto "
    "train.grad_accum=auto train.max_grad_norm=1.0 "
    "train.target_tokens_per_device_step=16384",
    FinishSftPlay};

}  // namespace capstan::import
