#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds to 1.88 nats a byte on tiny Shakespeare: AdamW's best and Muon's.

    curl -LO https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
    python3 bench/shakespeare.py --data input.txt [--repeats 3]

1.88 is what nanoGPT's README gives for its model for CPUs after 2000 steps. The
text (1,115,394 bytes) isn't part of the repository; its last tenth is held
back, and the loss counts when it is at most 1.88 on all of that after the last
step, whose learning rate is the schedule's end. Two ranks of one thread each,
as shakespeare/base.pbtxt says; shakespeare/OPTIMIZER.pbtxt has what was chosen
for each optimizer: batch, rates, number of steps. A round trains with each
optimizer, every other round in reverse order, each with another seed, which
both share.

Prints medians with the lowest and highest: seconds of the training steps, CPU
seconds of the whole run (user and system, of all ranks, with start and
evaluation), steps, and the loss reached. The machine's load is no part of the
CPU seconds, or of the steps. --set FIELD=VALUE, after --only NAME, tries other
settings, as for the trainer.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parent
TRAINER = BENCH.parent / "bazel-bin/trainer/trainer"
TARGET = 1.88  # nats a byte
BYTES = 1115394


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--trainer", type=pathlib.Path, default=TRAINER)
    parser.add_argument("--only", default="adamw,muon", help="optimizers")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--set", action="append", default=[],
                        help="for the trainer; may be repeated")
    return parser.parse_args()


def records(folder):
    """The lines of the run's metrics.jsonl."""
    with open(next(folder.rglob("metrics.jsonl"))) as file:
        return [json.loads(line) for line in file]


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def train(args, optimizer, seed):
    """One run: its figures by name."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="shakespeare-"))
    settings = [f"train_data.path={args.data.resolve()}", f"train.seed={seed}",
                f"output_dir={folder}/run", *args.set]
    command = [str(args.trainer.resolve())]
    command += [f"--config={BENCH / 'shakespeare' / name}.pbtxt"
                for name in ("base", optimizer)]
    for setting in settings:
        command += ["--set", setting]
    before = cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    cpu = cpu_seconds() - before
    try:
        if done.returncode != 0:
            sys.exit(f"{optimizer}: {done.stderr[-2000:]}")
        lines = records(folder)
    finally:
        shutil.rmtree(folder)
    steps = [line["step_seconds"] for line in lines if "step_seconds" in line]
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    return {"seconds": sum(steps), "cpu": cpu, "steps": len(steps),
            "step_ms": 1e3 * statistics.median(steps), "loss": losses[-1]}


def spread(runs, name, form):
    values = [run[name] for run in runs]
    return (f"{statistics.median(values):{form}} "
            f"({min(values):{form}}..{max(values):{form}})")


def main():
    args = parse()
    if args.data.stat().st_size != BYTES:
        sys.exit(f"{args.data} isn't tiny Shakespeare, which has {BYTES} bytes")
    names = args.only.split(",")
    runs = {name: [] for name in names}
    for number in range(args.repeats):
        for name in names if number % 2 == 0 else reversed(names):
            runs[name].append(train(args, name, number + 1))
            print(name, runs[name][-1], file=sys.stderr, flush=True)
    print(f"load {os.getloadavg()[0]:.1f}; median (lowest..highest)\n")
    print("| optimizer | steps | ms a step | training s | CPU s | nats a byte | "
          f"reaches {TARGET} |\n|---|---|---|---|---|---|---|")
    for name in names:
        r = runs[name]
        reached = sum(run["loss"] <= TARGET for run in r)
        print(f"| {name} | {r[0]['steps']} | {spread(r, 'step_ms', '.1f')} | "
              f"{spread(r, 'seconds', '.1f')} | {spread(r, 'cpu', '.1f')} | "
              f"{spread(r, 'loss', '.3f')} | {reached} of {len(r)} |")
    if len(names) == 2:
        for figure in ("seconds", "cpu"):
            ratios = [a[figure] / b[figure]
                      for a, b in zip(runs[names[0]], runs[names[1]])]
            print(f"\n{figure}: {names[0]} / {names[1]} "
                  f"{statistics.median(ratios):.2f}x "
                  f"({min(ratios):.2f}..{max(ratios):.2f})")


if __name__ == "__main__":
    main()
