#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures those runs of docs/benchmarks.md that this machine has the GPUs and
the memory for, beside what testing/roofline predicts for them: for
tests/gpu/run.sh.

    python3 bench/roofline/measure.py --gpu="NVIDIA H100 80GB HBM3" --gpus=1 \
        --output=FOLDER [--steps=12] [--seconds=480]

Weights are random. A run is killed after its steps, as a trainer that ends saves
its weights, which these machines may not have the disk for. Prints the table of
cases.py with what was measured, ready for the page, and leaves it in
FOLDER/table.md and FOLDER/rows.jsonl. Ends with 1 if a run fails or isn't within
its predicted range, and with 78 if a reader must judge; the last line says why.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

import cases

# None of these takes part in a step. So many steps are never reached.
SHORT = ["train.log_every=1", "train.eval_every=0", "train.save_every=0",
         "train.keep_best=false", "train.sample_prompts=",
         "train.max_steps=100000"]


class Unjudged(Exception):
    """Why a case can't be judged."""


def steps_of(folder):
    """The steps that have been written so far."""
    try:
        with open(os.path.join(folder, "metrics.jsonl"),
                  encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]  # the last may be half of one
    except FileNotFoundError:
        return []
    return [line for line in map(json.loads, lines) if "loss" in line]


def train(trainer, case, folder, steps, deadline):
    """Trains so many steps; returns them, or None and why: "" is for want of
    time."""
    command = [trainer, *cases.arguments(case)]
    for one in [*SHORT, f"launch.processes={case.gpus}", f"output_dir={folder}"]:
        command += ["--set", one]
    with open(folder + ".txt", "w", encoding="utf-8") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while len(steps_of(folder)) < steps and run.poll() is None:
            if time.monotonic() > deadline:
                return None, ""
            time.sleep(0.2)
    finally:
        run.kill()  # its ranks die with it
        run.wait()
    done = steps_of(folder)
    if len(done) >= steps:
        return done[:steps], ""
    with open(folder + ".txt", encoding="utf-8") as log:
        lines = log.read().strip().split("\n")
    return None, next((line for line in lines if "ERROR" in line), lines[-1])


def measure(args, case, number, deadline):
    """A line of rows.jsonl, or None, and what is wrong, or None."""
    if time.monotonic() > deadline:
        raise Unjudged("out of time")
    answer, error = cases.ask(args.roofline, case, args.gpu, 120)
    if answer is None:
        raise Unjudged(f"no prediction: {error}")
    one = answer["predictions"][0]
    if not one["fits"]:
        print(f"{case.name}: doesn't fit the memory")
        return None, None
    folder = os.path.join(args.output, str(number))
    steps, error = train(args.trainer, case, folder, args.steps, deadline)
    if steps is None and not error:
        raise Unjudged("out of time")
    if steps is None:
        return {"row": cases.row(case, answer, "fails")}, f"fails: {error}"
    # The first steps plan and allocate.
    steady = steps[len(steps) // 3:]
    seconds, tokens = (statistics.median(step[name] for step in steady)
                       for name in ("step_seconds", "tokens_per_second"))
    low, high = one["step_seconds_range"]
    wrong = None if low <= seconds <= high else (
        f"{1e3 * seconds:.0f} ms a step, predicted {1e3 * low:.0f} to "
        f"{1e3 * high:.0f} ms")
    return {"row": cases.row(case, answer, cases.thousands(tokens)),
            "step_seconds": seconds, "tokens_per_second": tokens,
            "steps": steps}, wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trainer", type=os.path.abspath,
                        default="bazel-bin/trainer/trainer")
    parser.add_argument("--roofline", type=os.path.abspath,
                        default="bazel-bin/testing/roofline/roofline")
    parser.add_argument("--gpu", required=True,
                        help="which one this is, as roofline or CUDA names it")
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--output", type=os.path.abspath, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=480)
    args = parser.parse_args()
    # So that what runs is ended first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(args.output)
    deadline = time.monotonic() + args.seconds
    rows, wrong, unjudged = [], [], []
    with open(os.path.join(args.output, "rows.jsonl"), "w",
              encoding="utf-8") as file:
        for number, case in enumerate(cases.CASES):
            if case.hosts > 1 or case.gpus > args.gpus:
                continue
            try:
                line, problem = measure(args, case, number, deadline)
            except Unjudged as reason:
                unjudged.append(f"{case.name}: {reason}")
                continue
            if problem:
                wrong.append(f"{case.name}: {problem}")
            if line is not None:
                rows.append(line["row"])
                file.write(json.dumps(line) + "\n")
                file.flush()
    for line in [*unjudged, *wrong]:
        print(line)
    if rows:
        text = cases.table(rows)
        with open(os.path.join(args.output, "table.md"), "w",
                  encoding="utf-8") as file:
            file.write(text + "\n")
        print(text)
    if wrong:
        sys.exit("; ".join(wrong))
    if unjudged or not rows:
        print("; ".join(unjudged) or "no case fits these GPUs")
        sys.exit(78)
    print(f"{len(rows)} runs are as fast as predicted")


if __name__ == "__main__":
    main()
