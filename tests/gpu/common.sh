# SPDX-License-Identifier: Apache-2.0
# For the parts of run.sh, which sets TRAINER, BUILD, GPUS and FOLDER. A part
# ends with 0 if it has judged and what it saw is right, with another number if
# it isn't; with skip if it can't run; with unjudged if it ran, and a reader must
# judge. Its last line says why.
set -uo pipefail

skip() {
  echo "$1"
  exit 77
}

unjudged() {
  echo "$1"
  exit 78
}

# wrong REASON: what was seen is wrong.
wrong() {
  echo "$1"
  exit 1
}

# result NAME JSON: a line of results.jsonl, which report.py shows.
result() {
  printf '{"part": "%s", "result": %s}\n' "$1" "${2//$'\n'/ }" \
    >>"$FOLDER/results.jsonl"
}

# gpu_name: as CUDA says it, "NVIDIA H100 PCIe", or as GPU does, roofline's own
# name; nothing if neither says it.
gpu_name() {
  echo "${GPU:-$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null |
    head -1)}"
}

# train_for NAME STEPS ARGUMENT..: a run of bench/roofline's small model or of
# the config in CONFIG, whose metrics are in $FOLDER/runs/NAME.
train_for() {
  local name=$1 steps=$2
  shift 2
  "$TRAINER" --config="${CONFIG:-bench/roofline/roofline.pbtxt}" \
    --set output_dir="$FOLDER/runs/$name" --set train.max_steps="$steps" \
    --set train.log_every=1 "$@"
}

# speed NAME: a summary's numbers as JSON: tokens a second, MFU, memory, loss.
speed() {
  python3 - "$FOLDER/runs/$1" <<'PYTHON'
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
steps = [line for line in lines if "loss" in line and "step" in line]
# The first steps plan and allocate.
steady = steps[len(steps) // 3:] or steps
def median(*names):
    for name in names:
        values = [line[name] for line in steady if line.get(name) is not None]
        if values:
            return statistics.median(values)
    return None
summary = json.load(open(sys.argv[1] + "/summary.json"))
print(json.dumps({
    "steps": len(steps),
    "step_seconds": median("step_seconds", "seconds"),
    "tokens_per_second": median("tokens_per_second"),
    "mfu": median("mfu"),
    "peak_bytes": max((v for line in steady for k, v in line.items()
                       if "peak" in k and isinstance(v, (int, float))),
                      default=None),
    "loss": steps[-1]["loss"] if steps else None,
    "summary": {k: v for k, v in summary.items()
                if isinstance(v, (int, float, str))},
}))
PYTHON
}
