#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint in one process: bench/checkpoint.py calls this.

    torch_checkpoint.py FOLDER save|load PARAMETERS

The same tensors as bench/checkpoint.cc; files are flushed to disk, as by default.
"""

import json
import resource
import sys
import time

import torch
import torch.distributed.checkpoint as dcp

TENSOR = 1000 * 1000


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    folder, what, parameters = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(1)
    state = {}
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        values = torch.randn(TENSOR) * 0.02
        for i, begin in enumerate(range(0, parameters, TENSOR)):
            count = min(TENSOR, parameters - begin)
            state[f"{kind}.{i}"] = values[:count].clone()
    cpu, begin = cpu_seconds(), time.monotonic()
    if what == "save":
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    else:
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    print(json.dumps({"seconds": time.monotonic() - begin,
                      "cpu": cpu_seconds() - cpu}))


main()
