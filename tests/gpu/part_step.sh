# SPDX-License-Identifier: Apache-2.0
# A step's time against testing/roofline, which gives a range.
. tests/gpu/common.sh
train_for step "${STEPS:-30}" || wrong "the run fails"
measured=$(speed step) || wrong "the run's metrics can't be read"
echo "$measured"
gpu=$(gpu_name)
if [ -z "$gpu" ]; then
  result step "{\"measured\": $measured, \"predicted\": null}"
  unjudged "nvidia-smi doesn't say which GPU it is: name it in GPU, GPU=h100"
fi
if ! predicted=$("$BUILD/testing/roofline/roofline" \
  --config="${CONFIG:-bench/roofline/roofline.pbtxt}" \
  --json --gpu="$gpu" --gpus="$GPUS"); then
  result step "{\"measured\": $measured, \"predicted\": null}"
  unjudged "no prediction for \"$gpu\"; roofline's error is above"
fi
result step "{\"measured\": $measured, \"predicted\": $predicted}"
python3 - "$measured" "$predicted" <<'PYTHON'
import json, sys
seconds = json.loads(sys.argv[1])["step_seconds"]
prediction = json.loads(sys.argv[2])["predictions"][0]
low, high = prediction["step_seconds_range"]
if seconds is None:
    print("the run doesn't say how long its steps took")
    sys.exit(78)
text = (f"{1e3 * seconds:.1f} ms a step, predicted {1e3 * low:.1f} to "
        f"{1e3 * high:.1f} ms on {prediction['gpu']}")
print(text)
sys.exit(0 if low <= seconds <= high else 1)
PYTHON
