#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh without a GPU: with programs that behave like the real ones every part
# that judges passes, and with one fault planted that very part fails, and says
# what is wrong.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${TEST_TMPDIR:-$(mktemp -d)}/rehearsal
rm -rf "$work"
build=$work/build
mkdir -p "$work/bin" "$build/kernels/cuda" "$build/kernels/attention" \
  "$build/bench" "$build/testing/roofline"
# The repository, with another bench/gpu.sh, and what that needs of Python.
tree=$work/tree
mkdir -p "$tree/tests" "$tree/bench" "$work/modules"
ln -s "$here" "$tree/tests/gpu"
ln -s "$here/../../bench/roofline" "$tree/bench/roofline"
touch "$work/modules/transformers.py" "$work/modules/matplotlib.py"
cat >"$work/modules/torch.py" <<'EOF'
class cuda:
    is_available = staticmethod(lambda: True)
EOF

# program PATH: an executable of what is read.
program() {
  cat >"$1"
  chmod +x "$1"
}
program "$work/bin/nvidia-smi" <<'EOF'
#!/bin/bash
[ "${FAULT-}" != machine ] || exit 9
case $* in
  *noheader*) echo "NVIDIA H100 80GB HBM3" ;;
  *) echo "a GPU" ;;
esac
EOF
program "$work/bin/compute-sanitizer" <<'EOF'
#!/bin/bash
echo "$@"
case "${FAULT-} $*" in
  old_driver*"--tool racecheck"*) exit 255 ;;
  sanitizer*"--tool racecheck"*) echo "RACECHECK SUMMARY: 1 hazard"; exit 9 ;;
  sanitized_training*trainer*) echo "ERROR SUMMARY: 1 error"; exit 9 ;;
esac
echo "ERROR SUMMARY: 0 errors"
EOF
program "$work/bin/all_reduce_perf" <<'EOF'
#!/bin/bash
[ "${FAULT-}" != nccl ] || exit 3
echo "  1048576  262144  float  sum  -1  9.1  115.0  201.0"
EOF
program "$tree/bench/gpu.sh" <<'EOF'
#!/bin/bash
case "${FAULT-}" in
  peers) echo "SmolLM2 can't be made"; exit 1 ;;
  other_model) echo "smollm2-135m, single: not the same model: 1 and 2" >&2 ;;
esac
echo "| smollm2-135m | single / PyTorch | 1.5x |"
EOF
program "$build/bench/gpu_kernels" <<'EOF'
#!/bin/bash
fraction=0.8
[ "${FAULT-}" != kernels ] || fraction=0.3
echo '{"kernel": "rms_norm", "dtype": "bf16", "fraction": '$fraction'}'
EOF
program "$build/testing/roofline/roofline" <<'EOF'
#!/bin/bash
fits=true
[[ "$*" != *sft_quickstart* ]] || fits=false
echo '{"predictions": [{"gpu": "h100", "step_seconds": 0.01,
  "tokens_per_second": 1000, "step_seconds_range": [0.005, 0.02],
  "tokens_per_second_range": [500, 2000], "mfu": 0.4, "fits": '$fits',
  "planned_bytes": 9e10, "room_bytes": 8e10,
  "exposed_communication_seconds": 0.001}], "bytes_sent": 1e9}'
EOF
for test in cuda/cuda_kernels attention/attention; do
  program "$build/kernels/${test}_gpu_test" <<'EOF'
#!/bin/bash
case ${FAULT-}:$0 in
  attention:*attention_gpu_test) echo "Value of: attention"; exit 1 ;;
esac
EOF
done

failed=0
# rehearse FAULT ARGUMENT..: run.sh with it; its output in $work/FAULT.txt and
# what it leaves in $work/FAULT.
rehearse() {
  local fault=$1
  shift
  (
    export FAULT=$fault PATH=$work/bin:$PATH BUILD=$build GPUS=2
    export TRAINER=$here/fake_trainer.py STEPS=6 PYTHONPATH=$work/modules
    export PARTS="$*"
    # Two are enough to see a fault.
    [ "$fault" = none ] || export WORKLOADS="sft_packed llada"
    bash "$tree/tests/gpu/run.sh" "$work/$fault"
  ) >"$work/$fault.txt" 2>&1
}
complain() {
  echo "FAILED: $1"
  cat "$work/$2.txt"
  failed=1
}

# Without a fault, all parts but those that a reader judges or that can't run.
judging="correctness workloads benchmarks kernels step batches strategies graphs memory sanitizer"
rehearse none machine "$judging" nccl peers ||
  complain "run.sh fails without a fault" none
for part in $judging; do
  grep -q "^$part"$'\t'"passed" "$work/none/parts.tsv" ||
    complain "$part doesn't pass" none
done
# Beside the predictions, ready for docs/benchmarks.md.
grep -qF '| 0.5 k to 2.0 k | 1.0 k | 40 to 44 k | LLMQ' "$work/none/report.md" ||
  complain "the report lacks what was measured" none
grep -q 'SFT.*the memory' "$work/none/benchmarks.txt" ||
  complain "nothing is said of what doesn't fit" none
# All logs are in the bundle, and no weights.
tar -tzf "$work/none/bundle.tar.gz" >"$work/bundle.txt" ||
  complain "there is no bundle" none
for part in machine $judging nccl peers; do
  grep -qx "./$part.txt" "$work/bundle.txt" ||
    complain "$part.txt isn't in the bundle" none
done
for file in parts.tsv results.jsonl report.md report.json \
  runs/strategy_fsdp/metrics.jsonl workloads/llada-bf16-gpu/summary.json; do
  grep -qx "./$file" "$work/bundle.txt" ||
    complain "$file isn't in the bundle" none
done
! grep -q weights "$work/bundle.txt" || complain "weights are bundled" none

# ends FAULT PART STATE TEXT: that part ends in that state, for that reason, and
# the report says so, too.
ends() {
  local state
  state=$(grep "^$2"$'\t' "$work/$1/parts.tsv")
  [[ "$state" == *"$3: "*"$4"* ]] ||
    complain "\"$state\" isn't \"$3: $4\"" "$1"
  grep -qF "## $2: $3" "$work/$1/report.md" ||
    complain "the report doesn't tell of $2" "$1"
}
# planted FAULT PART TEXT: that part fails and says so.
planted() {
  if rehearse "$1" "$2"; then complain "$1 goes unseen" "$1"; fi
  ends "$1" "$2" failed "$3"
}
planted machine machine "nvidia-smi fails"
planted correctness correctness "run_distributed in fp16: GPU as CPU"
planted attention correctness "attention_gpu_test"
planted workloads workloads "llada in fp32, llada in bf16"
planted resume workloads "other than on the CPU: resume"
planted generate workloads "generate with llama"
planted eval workloads "other than on the CPU: eval"
planted benchmarks benchmarks "QLoRA of rank 16, 4 x 2048, recomputed: 500 ms a step, predicted 5 to 20 ms"
planted benchmark_fails benchmarks "fp8, 4 x 2048: fails: ERROR: no products in 8 bits"
planted kernels kernels "rms_norm in bf16 30 %"
planted nccl nccl "all_reduce_perf fails"
planted step step "500.0 ms a step, predicted 5.0 to 20.0 ms"
planted batches batches "micro-batch 4 fails, and not for want of memory"
planted strategies strategies "fsdp is 5 % off ddp"
planted graphs graphs "train.cuda_graphs: ddp's curve changes"
planted memory memory "over 15 % off under zero2"
planted peers peers "bench/gpu.sh fails"
planted other_model peers "not the same model: 1 and 2"
planted sanitizer sanitizer "errors of racecheck"
planted sanitized_training sanitizer "errors of memcheck of training"

# compute-sanitizer's own failure is no error of ours.
rehearse old_driver sanitizer || complain "it fails" old_driver
ends old_driver sanitizer "not judged" "can't watch racecheck"

# A bundle that can't be written.
mkdir -p "$work/bundle/bundle.tar.gz/in_the_way"
if rehearse bundle machine; then complain "a lost bundle goes unseen" bundle; fi
grep -q "^the bundle can't be written" "$work/bundle.txt" ||
  complain "nothing is said of the bundle" bundle

exit "$failed"
