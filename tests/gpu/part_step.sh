# SPDX-License-Identifier: Apache-2.0
# A step's time against `trainer roofline`.
. tests/gpu/common.sh
train_for step 30 || exit 1
measured=$(speed step)
echo "$measured"
gpu=${GPU:-h100}
predicted=$("$TRAINER" roofline --config=bench/roofline/roofline.pbtxt --json \
  --gpu="$gpu" --gpus="$GPUS") || predicted=null
result step "{\"measured\": $measured, \"predicted\": $predicted}"
