# SPDX-License-Identifier: Apache-2.0
# What users run, without `deterministic`: short runs on one GPU, whose losses
# must be those of the same runs on the CPU, in float32 and in bfloat16; a run
# that was saved and resumed; what generate and eval say, there and here.
#
# How near they must be, as a fraction of the loss:
# - float32: 1e-5. Of four such steps in float64 (JAX, golden/llama trained whole)
#   the CPU's losses are within 2.5e-8, and JAX's in float32, whose sums have
#   other orders, within 2.5e-7; PyTorch's are within 1.5e-6 of ours in ten steps
#   (tests/parity).
# - bfloat16: four times what the CPU's own losses are from those in float32, which
#   next to bfloat16's roundings are exact. Two curves that round independently may
#   be twice that from each other. At least 1e-3, since few steps may be near by
#   luck: these workloads' are 1e-4 to 2e-3 from float32 on the CPU.
. tests/gpu/common.sh
exact=1e-5 rounded=1e-3
golden=tests/golden/testdata
steps=${STEPS:-4}
failed=''
# A rehearsal (tests/standin/gpu_workloads_test.sh) trains narrow models.
narrow='' narrow_llada=''
if [ -n "${NARROW:-}" ]; then
  narrow='--set model.hidden_size=64 --set model.intermediate_size=176
    --set model.num_attention_heads=4 --set model.num_key_value_heads=2
    --set model.num_hidden_layers=2'
  narrow_llada='--set model.d_model=64 --set model.mlp_hidden_size=176
    --set model.n_layers=2'
fi

# Name and arguments of train.
workload() {
  case $1 in
    sft_packed) arguments=(--config=configs/sft_quickstart.pbtxt $narrow) ;;
    sft_padded) arguments=(--config=configs/sft_quickstart.pbtxt $narrow
      --set train_data.packing=NONE) ;;
    lora) arguments=(--config=configs/run_distributed.pbtxt
      --set model=capstan.decoder --set model.pretrained="$PWD/$golden/llama"
      --set train_data.sequence_length=64
      --set 'adapter.lora.target_modules=["all-linear"]') ;;
    qlora) arguments=(--config=configs/run_distributed.pbtxt
      --set model=capstan.decoder --set model.pretrained="$PWD/$golden/llama"
      --set train_data.sequence_length=64
      --set 'adapter.lora.target_modules=["all-linear"]'
      --set adapter.lora.quantize=NF4) ;;
    moe) arguments=(--config=configs/run_distributed.pbtxt
      --set model=capstan.decoder
      --set model.config="$PWD/$golden/qwen3_moe/config.json") ;;
    llada) arguments=(--config=configs/llada_quickstart.pbtxt $narrow_llada) ;;
    ad) arguments=(--config=configs/ad_darkroom_quickstart.pbtxt
      --set collect.streams=5 --set collect.steps=1000
      --set train_data.steps=200
      --set train_data.path="$FOLDER/histories.hdf5"
      --set objective.evaluation.final_episodes=1
      --set objective.evaluation.episodes=1
      --set objective.evaluation.streams=1) ;;
    dpo) arguments=(--config=configs/dpo_quickstart.pbtxt $narrow) ;;
    *)
      echo "WORKLOADS: there is no workload \"$1\""
      exit 1
      ;;
  esac
}

# run FOLDER STEPS ARGUMENT..: `arguments`, on one rank.
run() {
  local folder=$1 last=$2
  shift 2
  "$TRAINER" "${arguments[@]}" --set launch.processes=1 \
    --set strategy=capstan.single --set output_dir="$folder" \
    --set train.max_steps="$last" --set train.log_every=1 \
    --set train.eval_every=0 --set train.eval_batches=1 \
    --set train.sample_prompts= --set train.resume=AUTO \
    --set schedule.warmup_steps=1 --set batch.micro_batch_size=2 \
    --set batch.global_batch_size=4 "$@"
}

# near GOT WANTED BOUND [FLOAT32]: prints the losses of two runs' folders, which
# must be within that fraction of each other, or within four times what WANTED is
# from FLOAT32, the same run in that precision.
near() {
  python3 - "$@" <<'PYTHON'
import json, sys
def losses(folder):
    lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    return [line["loss"] for line in lines if "loss" in line]
def distance(some, others):
    return max((abs(a - b) / max(abs(b), 1e-3) for a, b in zip(some, others)),
               default=1.0)
got, wanted = losses(sys.argv[1]), losses(sys.argv[2])
bound = float(sys.argv[3])
for folder in sys.argv[4:]:
    bound = max(bound, 4 * distance(wanted, losses(folder)))
worst = distance(got, wanted)
print(json.dumps({"got": got, "wanted": wanted, "worst": worst,
                  "bound": bound}))
sys.exit(0 if len(got) == len(wanted) and worst <= bound else 1)
PYTHON
}

on_cpu() { CUDA_VISIBLE_DEVICES='' RANK=0 WORLD_SIZE=1 "$@"; }

runs=$FOLDER/workloads
for name in ${WORKLOADS:-sft_packed sft_padded lora qlora moe llada ad dpo}; do
  workload "$name"
  for precision in fp32 bf16; do
    at=$runs/$name-$precision
    bound=("$exact")
    if [ "$precision" = bf16 ]; then
      bound=("$rounded")
      [ ! -e "$runs/$name-fp32-cpu" ] || bound+=("$runs/$name-fp32-cpu")
    fi
    echo "== $name in $precision"
    if ! run "$at-gpu" "$steps" --set precision="capstan.$precision" ||
      ! on_cpu run "$at-cpu" "$steps" --set precision="capstan.$precision"; then
      failed="$failed, $name in $precision"
      continue
    fi
    compared=$(near "$at-gpu" "$at-cpu" "${bound[@]}") ||
      failed="$failed, $name in $precision"
    echo "$compared"
    result workloads "{\"workload\": \"$name\", \
\"precision\": \"$precision\", \"compared\": $compared}"
  done
done

workload sft_packed
echo "== saved and resumed"
run "$runs/resumed" 2 --set precision=capstan.bf16 &&
  run "$runs/resumed" "$steps" --set precision=capstan.bf16 ||
  failed="$failed, resume"
near "$runs/resumed" "$runs/sft_packed-bf16-gpu" "$rounded" \
  "$runs/sft_packed-fp32-gpu" ||
  failed="$failed, resume"

echo "== generate and eval"
for model in llama gemma3 qwen3_moe; do
  write=(generate --model="$golden/$model" --prompt_ids=5,9,2,14 --greedy
    --max_new_tokens=24)
  here=$("$TRAINER" "${write[@]}") && there=$(on_cpu "$TRAINER" "${write[@]}")
  if [ -z "$here" ] || [ "$here" != "$there" ]; then
    echo "$model writes $here, on the CPU $there"
    failed="$failed, generate with $model"
  fi
done
# eval_loss COMMAND..
eval_loss() {
  "$@" eval --model="$runs/sft_packed-fp32-cpu" --json |
    sed -n 's/.*"eval_loss": \([^,]*\).*/\1/p'
}
here=$(eval_loss "$TRAINER")
there=$(eval_loss on_cpu "$TRAINER")
echo "eval_loss $here, on the CPU $there"
python3 -c '
import sys
here, there, bound = map(float, sys.argv[1:])
sys.exit(0 if abs(here - there) <= bound * abs(there) else 1)' \
  "$here" "$there" "$exact" ||
  failed="$failed, eval"

[ -z "$failed" ] || wrong "other than on the CPU:${failed#,}"
echo "all workloads are as on the CPU"
