# SPDX-License-Identifier: Apache-2.0
# The strategies' curves, which should be one.
. tests/gpu/common.sh
failed=0
for strategy in ddp zero2 fsdp; do
  if ! train_for "strategy_$strategy" "${STEPS:-100}" \
    --set strategy="capstan.$strategy"; then
    failed=1
    continue
  fi
  numbers=$(speed "strategy_$strategy")
  curve=$(python3 -c '
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
print(json.dumps([s["loss"] for s in steps if "loss" in s]))' \
    "$FOLDER/runs/strategy_$strategy/metrics.jsonl")
  result strategies "{\"strategy\": \"$strategy\", \"measured\": $numbers, \
\"losses\": $curve}"
done
exit "$failed"
