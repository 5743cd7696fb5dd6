# SPDX-License-Identifier: Apache-2.0
# train.cuda_graphs: the same losses to the last bit, the memory and the speed,
# with the deterministic kernels, since others may differ from run to run.
. tests/gpu/common.sh
set -o pipefail
failed=''
strategies="ddp zero2"
[ "$GPUS" -gt 1 ] || strategies="single"
for strategy in $strategies; do
  for graphs in false true; do
    name="graphs_${strategy}_$graphs"
    if ! train_for "$name" "${STEPS:-60}" --set strategy="capstan.$strategy" \
      --set train.deterministic=true --set train.cuda_graphs=$graphs |
      tee "$FOLDER/$name.txt"; then
      failed="$failed, the run under $strategy fails"
      continue
    fi
    # Where a kind falls back, or all of them do, a line says why.
    grep 'train\.cuda_graphs:' "$FOLDER/$name.txt" &&
      failed="$failed, $strategy falls back"
    result graphs "{\"strategy\": \"$strategy\", \"graphs\": $graphs, \
\"measured\": $(speed "$name")}"
  done
  if ! python3 - "$FOLDER/runs/graphs_$strategy"_{false,true}/metrics.jsonl <<'PYTHON'; then
import json, sys
without, with_graphs = ([(step["loss"], step["grad_norm"])
                         for step in map(json.loads, open(path))
                         if "loss" in step] for path in sys.argv[1:])
different = [i + 1 for i, (a, b) in enumerate(zip(without, with_graphs))
             if a != b]
print(f"{len(without)} and {len(with_graphs)} steps, different:", different[:5])
sys.exit(not without or bool(different) or len(without) != len(with_graphs))
PYTHON
    failed="$failed, $strategy's curve changes"
  fi
done
[ -z "$failed" ] || wrong "train.cuda_graphs: ${failed#, }"
echo "train.cuda_graphs changes nothing under $strategies"
