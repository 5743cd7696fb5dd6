# SPDX-License-Identifier: Apache-2.0
# compute-sanitizer on the kernels' test, and on two training steps.
. tests/gpu/common.sh
sanitizer=$(command -v compute-sanitizer ||
  ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
  skip "compute-sanitizer isn't here: it comes with the CUDA Toolkit"
test=$BUILD/kernels/cuda/cuda_kernels_gpu_test
[ -x "$test" ] || skip "no $test: build //kernels/cuda:all"
dirty='' late=''
# Together less than the part's limit.
for tool in memcheck racecheck synccheck; do
  echo "== $tool"
  timeout 95 "$sanitizer" --tool "$tool" --error-exitcode 9 "$test"
  case $? in
    0) state=clean ;;
    124) state="out of time" late="$late $tool" ;;
    *) state=errors dirty="$dirty $tool" ;;
  esac
  result sanitizer "{\"tool\": \"$tool\", \"state\": \"$state\"}"
done
echo "== memcheck of two training steps"
timeout 120 "$sanitizer" --tool memcheck --target-processes all \
  --error-exitcode 9 "$TRAINER" --config=configs/run_distributed.pbtxt \
  --set launch.processes=1 --set strategy=capstan.single \
  --set precision=capstan.bf16 --set train.max_steps=2 \
  --set train.eval_batches=1 --set train.sample_prompts= \
  --set output_dir="$FOLDER/runs/sanitized"
case $? in
  0) state=clean ;;
  124) state="out of time" late="$late training" ;;
  *) state=errors dirty="$dirty training" ;;
esac
result sanitizer "{\"tool\": \"memcheck of training\", \"state\": \"$state\"}"
[ -z "$dirty" ] || wrong "errors of$dirty"
[ -z "$late" ] || unjudged "out of time:$late"
echo "memcheck, racecheck and synccheck find nothing, memcheck nothing in training"
