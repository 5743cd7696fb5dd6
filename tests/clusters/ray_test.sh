#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Ranks that Ray Train starts: four Python workers, each with the trainer as a child.
source "$(dirname "$0")/common.sh"
need_launchers ray
reference

cat >"$work/train.py" <<'PY'
import os
import socket
import subprocess
import sys

import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def worker(command):
    # MASTER_PORT is the workers' own group's: the trainer's ranks need another.
    port = [None]
    if dist.get_rank() == 0:
        with socket.socket() as s:
            s.bind(("", 0))
            port = [s.getsockname()[1]]
    dist.broadcast_object_list(port)
    subprocess.run(command["arguments"], check=True,
                   env=dict(os.environ, MASTER_PORT=str(port[0])))


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
