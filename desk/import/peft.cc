// SPDX-License-Identifier: Apache-2.0
//
// PEFT's adapter_config.json (src/peft/tuners/lora/config.py there). Training
// goes on from the folder's adapter, which also sets rank, alpha and modules.
#include "desk/import/draft.h"

namespace capstan::import {
namespace {

const char kPeftRows[] = R"(
peft_type | @adapter | lora=lora *=*
base_model_name_or_path | @base | raw
r | @rank | raw | read from the folder
lora_alpha | @alpha | raw | read from the folder
target_modules | @target_modules | raw | read from the folder
use_rslora | @rslora | raw | read from the folder
modules_to_save | @modules_to_save | raw | read from the folder
rank_pattern rank_pattern.* | | lost | one rank for all modules
alpha_pattern alpha_pattern.* | | lost | one alpha for all modules
lora_dropout | @dropout | number
use_dora | @dora | raw | read from the folder
use_qalora use_bdlora use_bdlora.* kasa_config.* velora_config.* monteclora_config.*
  alora_invocation_tokens | | lost | only LoRA is trained here
lora_bias | | lost | biases aren't trained
bias | | none=- *=! | biases aren't trained; take "none"
fan_in_fan_out | | lost | weights are [out, in] here
layer_replication | | lost | layers are trained as they are
layers_to_transform layers_pattern | | lost | all layers are adapted
target_parameters | | lost | modules are adapted, not parameters
trainable_token_indices | | lost | embeddings are trained whole (modules_to_save)
exclude_modules | | lost | name the modules to adapt instead
task_type | | causal_lm=- *=! | only decoders are trained here
init_lora_weights inference_mode revision auto_mapping auto_mapping.* peft_version eva_config
  corda_config arrow_config loftq_config loftq_config.* megatron_config megatron_core
  qalora_group_size ensure_weight_tying runtime_config runtime_config.* lora_ga_config
)";

}  // namespace

const Peer kPeft = {"PEFT", {"peft_type"}, {{kPeftRows}}};

}  // namespace capstan::import
