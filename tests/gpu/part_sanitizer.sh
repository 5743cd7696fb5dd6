# SPDX-License-Identifier: Apache-2.0
# compute-sanitizer on the kernels' test, and on two training steps: the one in
# the PATH, or that of the wheel, or the Toolkit's.
. tests/gpu/common.sh
for sanitizer in "$(command -v compute-sanitizer)" \
  "$BUILD/tests/gpu/compute-sanitizer" \
  /usr/local/cuda/bin/compute-sanitizer; do
  [ ! -x "$sanitizer" ] || break
done
[ -x "$sanitizer" ] ||
  skip "no compute-sanitizer: ./bazelw build //tests/gpu:compute-sanitizer"
"$sanitizer" --version
test=$BUILD/kernels/cuda/cuda_kernels_gpu_test
[ -x "$test" ] || skip "no $test: build //kernels/cuda:all"
dirty='' late='' unable=''

# watch NAME SECONDS TOOL PROGRAM ARGUMENT..
watch() {
  local name=$1 seconds=$2 tool=$3 state
  shift 3
  echo "== $name"
  timeout "$seconds" "$sanitizer" --tool "$tool" --target-processes all \
    --error-exitcode 9 "$@"
  case $? in
    0) state=clean ;;
    124) state="out of time" late="$late, $name" ;;
    # Its own failures, such as a driver that is too old for it.
    255) state="didn't start" unable="$unable, $name" ;;
    *) state=errors dirty="$dirty, $name" ;;
  esac
  result sanitizer "{\"tool\": \"$name\", \"state\": \"$state\"}"
}

# Together less than the part's limit.
for tool in memcheck racecheck synccheck; do
  watch "$tool" 95 "$tool" "$test"
done
watch "memcheck of training" 120 memcheck \
  "$TRAINER" --config=configs/run_distributed.pbtxt \
  --set launch.processes=1 --set strategy=capstan.single \
  --set precision=capstan.bf16 --set train.max_steps=2 \
  --set train.eval_batches=1 --set train.sample_prompts= \
  --set output_dir="$FOLDER/runs/sanitized"
[ -z "$dirty" ] || wrong "errors of ${dirty#, }"
[ -z "$unable" ] || unjudged "compute-sanitizer can't watch ${unable#, }"
[ -z "$late" ] || unjudged "out of time: ${late#, }"
echo "memcheck, racecheck and synccheck find nothing, memcheck nothing in training"
