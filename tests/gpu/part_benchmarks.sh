# SPDX-License-Identifier: Apache-2.0
# The runs of docs/benchmarks.md that fit here, as its table, with a column of
# what was measured; each must be within its predicted range.
. tests/gpu/common.sh
gpu=$(gpu_name)
[ -n "$gpu" ] ||
  skip "nvidia-smi doesn't say which GPU it is: name it in GPU, GPU=h100"
roofline=$BUILD/testing/roofline/roofline
[ -x "$roofline" ] || skip "no $roofline: build //testing/roofline"
python3 bench/roofline/measure.py --trainer="$TRAINER" \
  --roofline="$roofline" --gpu="$gpu" --gpus="$GPUS" \
  --steps="${STEPS:-12}" --seconds=540 --output="$FOLDER/benchmarks" 2>&1
status=$?
while read -r line; do
  result benchmarks "$line"
done <"$FOLDER/benchmarks/rows.jsonl"
exit "$status"
