# SPDX-License-Identifier: Apache-2.0
# Bus bandwidth of NCCL on as many GPUs as there are, by NVIDIA's nccl-tests if
# they are in the PATH (all_reduce_perf), else by a run whose step only reduces.
. tests/gpu/common.sh
[ "$GPUS" -gt 1 ] || skip "one GPU: nothing to communicate"
for collective in all_reduce reduce_scatter all_gather; do
  program=$(command -v "${collective}_perf") || continue
  "$program" -b 1M -e 1G -f 4 -g "$GPUS" | tee "$FOLDER/$collective.txt" ||
    wrong "${collective}_perf fails"
  bus=$(awk '/^ *[0-9]/ { bus = $8 } END { print bus }' "$FOLDER/$collective.txt")
  result nccl "{\"collective\": \"$collective\", \"bus_gb_per_second\": ${bus:-null}}"
done
# What the trainer's own steps say: bytes sent over the time of collectives.
train_for nccl "${STEPS:-20}" --set strategy=capstan.ddp ||
  wrong "the run under ddp fails"
python3 - "$FOLDER/runs/nccl/metrics.jsonl" >"$FOLDER/nccl.json" <<'PYTHON' ||
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
steps = [s for s in steps if s.get("communication_seconds")][3:]
sent = sum(s["bytes_sent"] for s in steps)
busy = sum(s["communication_seconds"] for s in steps)
exposed = sum(s.get("exposed_seconds", 0) for s in steps)
print(json.dumps({"collective": "ddp's own", "bus_gb_per_second":
                  sent / busy / 1e9 if busy else None,
                  "exposed_share": exposed / busy if busy else None}))
PYTHON
  wrong "metrics.jsonl can't be read"
cat "$FOLDER/nccl.json"
result nccl "$(cat "$FOLDER/nccl.json")"
unjudged "bandwidths, to be read beside the links' (nvidia-smi topo -m)"
