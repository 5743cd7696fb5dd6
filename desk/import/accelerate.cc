// SPDX-License-Identifier: Apache-2.0
//
// accelerate's config (docs/source/package_reference/cli.md and
// utils/dataclasses.py there) and the options of accelerate launch, torchrun
// and deepspeed, which have the prefix "launcher.".
#include "desk/import/transformers.h"

namespace capstan::import {
namespace {

const char kAccelerateRows[] = R"(
compute_environment | | local_machine=- amazon_sagemaker=! | `trainer script` writes the jobs of
  clusters
distributed_type | @distributed | no=single multi_cpu=ddp multi_gpu=ddp multi_npu=! multi_xpu=!
  fsdp=fsdp deepspeed=deepspeed megatron_lm=! xla=! tpu=! tp=! *=! | no such parallelism here; take
  ddp, zero2 or fsdp
mixed_precision | @mixed_precision | no=no fp16=fp16 bf16=bf16 fp8=fp8
use_cpu | | | the run takes GPUs if there are any
num_processes | @processes | integer
num_machines num_nodes | @machines | integer
machine_rank node_rank | | | start each machine with its --node_rank
main_process_ip master_addr | @ip | raw
main_process_port master_port | @port | integer
gpu_ids | @gpu_ids | all=- *=*
gradient_accumulation_steps deepspeed_config.gradient_accumulation_steps | @accumulation | integer
gradient_clipping deepspeed_config.gradient_clipping | train.max_grad_norm | number
env.* | | | set them in the run's environment
tpu_name tpu_zone tpu_use_cluster | | lost | no TPUs here
mpirun_config.* | | | mpirun starts the trainer itself
fp8_config.* | | lost | scales are made anew for each product; set precision.scaling
megatron_lm_config.* | | lost | no tensor or pipeline parallelism
use_deepspeed | @distributed | true=deepspeed false=-
use_fsdp | @distributed | true=fsdp false=-
multi_gpu | @distributed | true=ddp false=-
deepspeed_config.zero_stage zero_stage | @zero_stage | integer
deepspeed_config.offload_optimizer_device | @offload_optimizer | none=- cpu=CPU nvme=! | not to a
  disk; take cpu
deepspeed_config.offload_param_device | @offload_param | none=- cpu=CPU nvme=! | not to a disk; take
  cpu
deepspeed_config.deepspeed_hostfile | | | start the trainer on each host
fsdp_config.* | | | units are the model's layers; checkpoints serve any number of ranks
parallelism_config.parallelism_config_dp_replicate_size | @replicas | integer
parallelism_config.parallelism_config_tp_size | | 1=- *=! | no tensor parallelism; take fsdp
parallelism_config.parallelism_config_cp_size parallelism_config.parallelism_config_sp_size |
  train.sequence_parallel | 1=- *=! | set train.sequence_parallel by hand (docs/strategies.md)
nproc_per_node num_gpus | @per_machine | integer
nnodes | @machines | integer | elastic ranges aren't taken
rdzv_endpoint | launch.rendezvous | text
max_restarts | launch.max_restarts | integer
downcast_bf16 debug rdzv_backend same_network main_training_function enable_cpu_affinity tpu_env
  tpu_use_sudo commands command_file dynamo_config.* dynamo_backend ec2_instance_type iam_role_name
  deepspeed_config.deepspeed_config_file deepspeed_config.zero3_init_flag
  deepspeed_config.zero3_save_16bit_model deepspeed_config.deepspeed_multinode_launcher
  deepspeed_config.seq_parallel_communication_data_type
  parallelism_config.parallelism_config_dp_shard_size parallelism_config.*
# Options of launchers that a file has no keys for.
config_file deepspeed_config_file rdzv_conf u rdzv_id standalone num_cpu_threads_per_process
)";

}  // namespace

const char kFsdpRows[] = R"(
fsdp_config.fsdp_sharding_strategy fsdp_config.sharding_strategy | @fsdp_sharding |
  full_shard=FULL_SHARD shard_grad_op=SHARD_GRAD_OP no_shard=NO_SHARD hybrid_shard=HYBRID_SHARD
  1=FULL_SHARD 2=SHARD_GRAD_OP 3=NO_SHARD 4=HYBRID_SHARD *=! | take FULL_SHARD
fsdp_config.fsdp_reshard_after_forward fsdp_config.reshard_after_forward | @fsdp_sharding |
  true=FULL_SHARD false=SHARD_GRAD_OP full_shard=FULL_SHARD shard_grad_op=SHARD_GRAD_OP
  no_shard=NO_SHARD hybrid_shard=HYBRID_SHARD
fsdp_config.fsdp_offload_params fsdp_config.offload_params | @offload_param | true=CPU false=-
fsdp_config.fsdp_activation_checkpointing fsdp_config.activation_checkpointing |
  train.activation_checkpointing | true=EVERY_UNIT false=-
)";

const Peer kAccelerate = {"accelerate",
                          {"compute_environment", "distributed_type"},
                          {{kAccelerateRows}, {kFsdpRows}}};

}  // namespace capstan::import
