#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capstan and plain PyTorch DDP on Algorithm Distillation, in turn, in one run.

    python3 bench/ad.py --peer PEER.py [--data HISTORIES.hdf5] [--repeats 5]

Two ranks of one thread each on CPUs, fp32: the shape of configs/ad_dr.pbtxt
(embedding 64, 4 layers, 4 heads, 80 tokens, dropout 0.1), 512 histories a rank
and step. PEER.py is run by torchrun with --steps, --batch, --embd, --layers,
--heads and --n_transit, and ends its output with a line of JSON that has the
median of its steps after the first, "step_s". HISTORIES are darkroom's; by
default `trainer collect` makes some. A round runs both once, every other round
in reverse order.

Prints the table of seconds a step and the ratio with what it must reach, and
writes to --output (default runs/bench/TIME): report.md and results.json.
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import signal
import statistics
import sys
import tempfile

import compare
import comparison
import contestants
import processes
import report

PEER = "PyTorch DDP"
BAR = 3.0
STEPS = 8  # the first doesn't count
SHAPE = {"embd": 64, "layers": 4, "heads": 4, "n_transit": 80, "batch": 512}
PACKAGES = ("torch",)
LIMIT_SECONDS = 1800
# Of each of darkroom's 81 goals.
STREAMS, HISTORY_STEPS = 4, 1040


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, help="HDF5")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=pathlib.Path, help="a folder")
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with torch instead of bench/.venv")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2: the first doesn't count")
    return args


class Runner(contestants.Runner):
    """Runs one side; gives its median step in seconds."""

    def __init__(self, python, trainer, args, folder):
        super().__init__("cpu", python, trainer)
        self._peer = str(args.peer.resolve())
        self._steps = args.steps
        self._data = (args.data or self._collect(folder)).resolve()

    def _collect(self, folder):
        file = folder / "histories.hdf5"
        print("collecting histories", file=sys.stderr)
        processes.run(
            [self._trainer, "collect", "--config=configs/collect_darkroom.pbtxt",
             "--set", "collect.output=%s" % file.resolve(),
             "--set", "collect.streams=%d" % STREAMS,
             "--set", "collect.steps=%d" % (STREAMS * HISTORY_STEPS)],
            contestants.ROOT, self._environment(), LIMIT_SECONDS)
        return file

    def _capstan(self):
        with tempfile.TemporaryDirectory(prefix="capstan_bench_") as folder:
            run = folder + "/run"
            settings = {
                "output_dir": run,
                "train_data.path": self._data,
                "train.max_steps": self._steps,
                "launch.processes": contestants.RANKS["cpu"]}
            command = [self._trainer, "--config=bench/ad.pbtxt"]
            for name, value in settings.items():
                command += ["--set", "%s=%s" % (name, value)]
            processes.run(command, contestants.ROOT, self._environment(),
                          LIMIT_SECONDS)
            metrics = pathlib.Path(run, "metrics.jsonl").read_text()
            summary = json.loads(pathlib.Path(run, "summary.json").read_text())
        seconds = [line["step_seconds"] for line in
                   map(json.loads, metrics.splitlines()) if "loss" in line]
        return {"step_s": statistics.median(seconds[1:]),
                "parameters": summary["parameters"],
                "peak_memory_bytes": max(summary["peak_memory_bytes"])}

    def measure(self, side):
        if side == comparison.CAPSTAN:
            return self._capstan()
        output = processes.run(
            [self._python, "-m", "torch.distributed.run",
             "--nproc_per_node=%d" % contestants.RANKS["cpu"],
             "--master_addr=127.0.0.1",
             "--master_port=%d" % contestants.free_port(), self._peer,
             "--steps=%d" % self._steps,
             *("--%s=%d" % item for item in SHAPE.items())],
            contestants.ROOT, self._environment(), LIMIT_SECONDS)
        return json.loads(output.strip().splitlines()[-1])


def summary(measurements):
    """Spreads of both sides' seconds a step, and of the peer's over ours."""
    seconds = {side: {m["round"]: m["step_s"] for m in measurements
                      if m["side"] == side}
               for side in (comparison.CAPSTAN, PEER)}
    return {"step_s": {side: comparison.spread(of.values())
                       for side, of in seconds.items() if of},
            "ratio": comparison.ratios(seconds[PEER],
                                       seconds[comparison.CAPSTAN])}


def tables(result):
    lines = [[side, *("%.3f" % step[of]
                      for of in ("median", "lowest", "highest"))]
             for side, step in result["step_s"].items()]
    text = report.markdown_table(
        ["seconds a step", "median", "lowest", "highest"], lines)
    if result["ratio"]:
        text += "\nRatio %s; it must reach %g: %s.\n" % (
            report.ratio(result["ratio"]), BAR,
            "reached" if result["ratio"]["median"] >= BAR else "no")
    return text


def describe(args, runner, python):
    return {
        "command": shlex.join(["python3", "bench/ad.py", *sys.argv[1:]]),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "commit": compare.commit(), "device_name": runner.device_name(),
        "cores": os.cpu_count(), "load": os.getloadavg()[0],
        "versions": contestants.versions(python, PACKAGES),
        "ranks": contestants.RANKS["cpu"], "rounds": args.repeats,
        "steps": args.steps, "shape": SHAPE}


def write(folder, results):
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    about = results["about"]
    (folder / "report.md").write_text("\n".join([
        "# Capstan and plain PyTorch DDP on Algorithm Distillation\n",
        "`%s`, %s, commit %s; %s, %d cores, load %.1f; %s; %d ranks.\n" % (
            about["command"], about["date"], about["commit"],
            about["device_name"], about["cores"], about["load"],
            ", ".join("%s %s" % item for item in about["versions"].items()),
            about["ranks"]),
        tables(results["result"])]))


def main():
    args = parse()
    # So that what runs is ended first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.trainer is None:
        contestants.ensure_trainer()
    python = args.python or contestants.ensure_peer(packages=PACKAGES)
    folder = args.output or contestants.ROOT / "runs/bench" / (
        datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="capstan_bench_") as made:
        runner = Runner(python, args.trainer or contestants.TRAINER, args,
                        pathlib.Path(made))
        measurements = []
        about = describe(args, runner, python)
        for round_ in range(args.repeats):
            for side in comparison.in_turn((comparison.CAPSTAN, PEER), round_):
                measurements.append(
                    {"round": round_, "side": side, **runner.measure(side)})
                print("%s: %.3f s a step" % (side, measurements[-1]["step_s"]),
                      file=sys.stderr)
                write(folder, {"about": about, "measurements": measurements,
                               "result": summary(measurements)})
    print(tables(summary(measurements)), end="")
    print("\nWritten to %s: report.md, results.json" % folder)


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
