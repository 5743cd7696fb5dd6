# SPDX-License-Identifier: Apache-2.0
# The allocator's peak against `trainer plan`.
. tests/gpu/common.sh
failed=0
for strategy in ddp zero2 fsdp; do
  plan=$("$TRAINER" plan --config="${CONFIG:-bench/roofline/roofline.pbtxt}" \
    --gpus="$GPUS" --set strategy="capstan.$strategy") || failed=1
  echo "$plan"
  train_for "memory_$strategy" "${STEPS:-5}" --set strategy="capstan.$strategy" || failed=1
  numbers=$(speed "memory_$strategy") || numbers=null
  quoted=$(python3 -c 'import json, sys; print(json.dumps(sys.argv[1]))' "$plan")
  result memory "{\"strategy\": \"$strategy\", \"plan\": $quoted, \
\"measured\": $numbers}"
done
exit "$failed"
