// SPDX-License-Identifier: Apache-2.0
//
// DeepSpeed's JSON (its docs/_pages/config-json.md). "auto" leaves a value to
// the trainer's arguments.
#include "desk/import/draft.h"

namespace capstan::import {
namespace {

const char kDeepSpeedRows[] = R"(
train_batch_size | @train_batch | integer
train_micro_batch_size_per_gpu | @micro | positive
gradient_accumulation_steps | @accumulation | integer
gradient_clipping | train.max_grad_norm | number
bf16.enabled bfloat16.enabled | @bf16 | flag
fp16.enabled | @fp16 | flag
fp16.loss_scale | | 0=- *=! | the scale is dynamic; leave it at 0
fp16.initial_scale_power | @scale_power | integer
fp16.loss_scale_window | @growth_interval | integer
fp16.min_loss_scale | @min_scale | number
fp16.hysteresis | | | each overflow halves the scale
fp16.* | | lost | the model computes in fp16 or not at all
zero_optimization.stage | @zero_stage | integer
zero_optimization.reduce_bucket_size | @reduce_bucket_size | integer
zero_optimization.allgather_bucket_size | @allgather_bucket_size | integer
zero_optimization.overlap_comm | @overlap_comm | flag
zero_optimization.offload_optimizer.device | @offload_optimizer | none=- cpu=CPU nvme=! | not to a
  disk; take cpu
zero_optimization.cpu_offload | @offload_optimizer | true=CPU false=-
zero_optimization.offload_optimizer.pin_memory | @pin_memory | flag
zero_optimization.offload_param.device | @offload_param | none=- cpu=CPU nvme=! | not to a disk;
  take cpu
zero_optimization.zero_quantized_weights | | lost | weights are gathered as they are
zero_optimization.zero_quantized_gradients | | lost | gradients are summed as they are
zero_optimization.* | | | the strategy plans its own buffers
optimizer.type | optimizer | adamw=capstan.adamw adam=capstan.adamw onebitadam=! lamb=! *=! | take
  capstan.adamw, adafactor, muon or sgd
optimizer.params.lr scheduler.params.warmup_max_lr | optimizer.learning_rate | number
optimizer.params.weight_decay | optimizer.weight_decay | number
optimizer.params.betas | @betas | raw
optimizer.params.eps | optimizer.epsilon | number
optimizer.params.adam_w_mode | | true=- *=! | Adam with L2 in the gradient isn't here; take
  decoupled decay
scheduler.type | schedule.kind | warmuplr=~CONSTANT warmupdecaylr=~LINEAR warmupcosinelr=~COSINE *=!
  | warm-up is linear here, logarithmic there unless warmup_type is linear
scheduler.params.warmup_num_steps | schedule.warmup_steps | integer
scheduler.params.total_num_steps | schedule.total_steps | integer
scheduler.params.warmup_min_lr | | 0=- *=! | warm-up starts at 0
scheduler.params.warmup_type | | linear=- *=! | warm-up is linear
optimizer.params.bias_correction | | true=- *=! | Adam corrects its bias
quantize_training.* | | lost | no quantisation-aware training
communication_data_type | | | gradients are summed in float32
activation_checkpointing.* | | | train.activation_checkpointing
sequence_parallel_size | | 1=- *=! | set train.sequence_parallel by hand (docs/strategies.md)
tensor_parallel.autotp_size | | 0=- 1=- *=! | no tensor parallelism; take fsdp
disable_allgather seq_parallel_communication_data_type bf16.* zero_optimization.offload_optimizer.*
  optimizer.params.torch_adam gradient_predivide_factor prescale_gradients steps_per_print
  wall_clock_breakdown memory_breakdown dump_state zero_allow_untested_optimizer
  zero_force_ds_cpu_optimizer aio.* comms_logger.* flops_profiler.* compile.* comms_config.*
  monitor_config.* eigenvalue.* tensorboard.* wandb.* csv_monitor.* checkpoint.* data_types.*
)";

}  // namespace

const Peer kDeepSpeed = {
    "DeepSpeed",
    {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"},
    {{kDeepSpeedRows}}};

}  // namespace capstan::import
