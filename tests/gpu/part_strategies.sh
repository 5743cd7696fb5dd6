# SPDX-License-Identifier: Apache-2.0
# The strategies' curves, which should be one: within 1 % in the first steps, as
# 16 bits drift apart later.
. tests/gpu/common.sh
for strategy in ddp zero2 fsdp; do
  train_for "strategy_$strategy" "${STEPS:-100}" \
    --set strategy="capstan.$strategy" || wrong "the run under $strategy fails"
  numbers=$(speed "strategy_$strategy") ||
    wrong "metrics of $strategy can't be read"
  curve=$(python3 -c '
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
print(json.dumps([s["loss"] for s in steps if "loss" in s]))' \
    "$FOLDER/runs/strategy_$strategy/metrics.jsonl")
  result strategies "{\"strategy\": \"$strategy\", \"measured\": $numbers, \
\"losses\": $curve}"
  echo "$curve" >"$FOLDER/curve_$strategy.json"
done
python3 - "$FOLDER"/curve_{ddp,zero2,fsdp}.json <<'PYTHON'
import json, sys
ddp, *others = [json.load(open(path))[:20] for path in sys.argv[1:]]
if not ddp or any(len(curve) != len(ddp) for curve in others):
    sys.exit("the curves differ in length")
off = {name: max(abs(a - b) / abs(b) for a, b in zip(curve, ddp))
       for name, curve in zip(("zero2", "fsdp"), others)}
far = [f"{name} is {100 * worst:.3g} % off ddp"
       for name, worst in off.items() if worst > 0.01]
if far:
    sys.exit(", ".join(far))
print(f"zero2 and fsdp are within {100 * max(off.values()):.3g} % of ddp in "
      f"{len(ddp)} steps")
PYTHON
