#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Ranks that Ray Train starts: four Python workers, each with the trainer as a child.
source "$(dirname "$0")/common.sh"
need_launchers ray
reference

cat >"$work/train.py" <<'PY'
import subprocess
import sys

from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def worker(command):
    subprocess.run(command["arguments"], check=True)


TorchTrainer(
    worker,
    train_loop_config={"arguments": sys.argv[1:]},
    torch_config=TorchConfig(backend="gloo"),
    scaling_config=ScalingConfig(num_workers=4,
                                 resources_per_worker={"CPU": 0.5}),
).fit()
PY
RAY_TRAIN_V2_ENABLED=1 RAY_TMPDIR="$work" RAY_USAGE_STATS_ENABLED=0 HOME="$work" \
  timeout 200 "$launchers/python" "$work/train.py" "$trainer" --config="$config" \
  --set output_dir="$work/ray" >"$work/ray.log" 2>&1 ||
  { tail -50 "$work/ray.log" >&2; fail "Ray Train"; }
expect_same "Ray Train, 4 workers" "$work/ray"
end
