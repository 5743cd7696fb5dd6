#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The part "correctness" of run.sh: the tests tagged "gpu" (built by `bazel build
# //...`), and short runs of configs/run_distributed.pbtxt, one rank a GPU, in
# every precision, whose losses must be those of the same runs on the CPU, those
# of a run that was saved and resumed, and those under the other strategies.
# TRAINER is the trainer's path, by default bazel-bin/trainer/trainer.
set -euo pipefail
cd "$(dirname "$0")/../.."

gpus=${GPUS:-0}  # run.sh counts them
if [ "$gpus" -eq 0 ]; then
  echo "no GPU: skipped"
  exit 0
fi

trainer=${TRAINER:-bazel-bin/trainer/trainer}
if [ ! -x "$trainer" ]; then
  echo "no trainer at $trainer: run ./bazelw build //... first" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=''

# check NAME COMMAND..: runs the command and counts how it ended.
check() {
  local name=$1
  shift
  if "$@"; then
    echo "PASSED $name"
    passed=$((passed + 1))
  else
    echo "FAILED $name"
    failed="$failed, ${name##*/}"
  fi
}

# More arguments of train.
extra=()

# train PRECISION FOLDER STEPS: up to that one of five steps, from the folder's
# checkpoint if there is one; as many samples a step for any number of ranks as
# there are GPUs.
train() {
  "$trainer" --config=configs/run_distributed.pbtxt \
    --set precision="capstan.$1" --set output_dir="$2" \
    --set train.max_steps="$3" --set train.eval_batches=2 \
    --set train.resume=AUTO --set train.deterministic=true \
    --set schedule.warmup_steps=1 --set schedule.total_steps=5 \
    --set batch.micro_batch_size=2 --set batch.global_batch_size=$((2 * gpus)) \
    "${extra[@]}"
}

# The losses in the order of the steps.
losses() {
  sed -n 's/.*"loss": *\([^,}]*\).*/\1/p' "$1/metrics.jsonl"
}

# same_losses FOLDER FOLDER LIMIT: within that fraction of each other.
same_losses() {
  paste <(losses "$1") <(losses "$2") | awk -v limit="$3" '
    {
      print "  " $1 "  " $2
      difference = ($1 - $2) / $2
      if (NF != 2 || !(difference < limit && difference > -limit)) bad = 1
    }
    END { exit (NR != 5 || bad) }'
}

# compare PRECISION: GPU and CPU.
compare() {
  train "$1" "$work/gpu_$1" 5 || return 1
  # In one process, whatever the cores.
  CUDA_VISIBLE_DEVICES='' RANK=0 WORLD_SIZE=1 train "$1" "$work/cpu_$1" 5 ||
    return 1
  same_losses "$work/gpu_$1" "$work/cpu_$1" 1e-3
}

# resume PRECISION: two steps and three more, and the five of compare.
resume() {
  train "$1" "$work/resumed_$1" 2 || return 1
  train "$1" "$work/resumed_$1" 5 || return 1
  same_losses "$work/resumed_$1" "$work/gpu_$1" 1e-6
}

# auto_precision: 16 bits, as on any GPU since 2017.
auto_precision() {
  train auto "$work/auto" 2 || return 1
  grep -E '"precision": "capstan.auto \(b?float16\)"' "$work/auto/summary.json"
}

# strategy NAME ARGUMENT..: another strategy on the GPUs, and ddp there.
strategy() {
  local folder="$work/$1"
  shift
  extra=("$@")
  train fp32 "$folder" 5
  local status=$?
  extra=()
  [ "$status" -eq 0 ] && same_losses "$folder" "$work/gpu_fp32" 1e-5
}

tests=$(find "${BUILD:-bazel-bin}/" -name '*_gpu_test' -type f -perm -u+x \
  -not -path '*.runfiles/*')
for test in $tests; do
  check "$test" "$test"
done
for precision in fp32 bf16 fp16; do
  check "run_distributed in $precision: GPU as CPU" compare "$precision"
  check "run_distributed in $precision: resumed as straight" resume "$precision"
done
check "precision auto" auto_precision
check "zero2 as ddp" strategy zero2 --set strategy=capstan.zero2
check "zero2, offloaded, as ddp" strategy zero2_offload \
  --set strategy=capstan.zero2 --set strategy.offload_optimizer.device=CPU
check "fsdp as ddp" strategy fsdp --set strategy=capstan.fsdp
check "fsdp, offloaded, as ddp" strategy fsdp_offload \
  --set strategy=capstan.fsdp --set strategy.cpu_offload=true
for units in EVERY_UNIT MLP; do
  check "activation checkpointing, $units, as ddp" strategy "recomputed_$units" \
    --set "train.activation_checkpointing=$units"
done
[ -z "$failed" ] || { echo "$passed passed, failed: ${failed#, }"; exit 1; }
if [ -z "$tests" ]; then
  echo "$passed passed, but there is no *_gpu_test: ./bazelw build //... first"
  exit 78
fi
echo "$passed passed"
