# SPDX-License-Identifier: Apache-2.0
# A step's time against `trainer roofline`.
. tests/gpu/common.sh
train_for step "${STEPS:-30}" || exit 1
measured=$(speed step)
echo "$measured"
name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
gpu=$(grep -oiE 'gb200|gh200|b200|h200|h100|a100|l40s|l4' <<<"$name" | head -1)
gpu=${GPU:-${gpu:-h100}}
gpu=${gpu,,}
predicted=$("$TRAINER" roofline --config="${CONFIG:-bench/roofline/roofline.pbtxt}" --json \
  --gpu="$gpu" --gpus="$GPUS") || predicted=null
result step "{\"measured\": $measured, \"predicted\": $predicted}"
