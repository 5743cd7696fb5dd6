#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capstan's and stable-baselines3's PPO on a darkroom, in turn, in one run.

    python3 bench/collect.py [--repeats 3] [--updates 13]

One thread each, the settings of configs/collect_darkroom.pbtxt (100 streams, 80
steps of each and 20 epochs an update, minibatches of 40), the goal (0, 0). A
round runs both once, every other round in reverse order. Of Capstan the whole
of `trainer collect` is timed, its start and the writing of its file included; of
stable-baselines3 learning alone, which records nothing.

Prints environment steps a second, learning included, and a second of the
processor's time, where other programs matter less; their ratios; and both mean
returns by update. Writes to --output (default runs/bench/TIME): report.md and
results.json. stable-baselines3 is installed in bench/.venv at need.
"""

import argparse
import datetime
import json
import os
import pathlib
import resource
import shlex
import statistics
import sys
import tempfile
import time

import compare
import comparison
import contestants
import processes
import report

CONFIG = "configs/collect_darkroom.pbtxt"
STREAMS, STEPS_PER_UPDATE = 100, 80  # that config's
BAR = 20.0
REQUIREMENTS = contestants.BENCH / "peers/requirements_collect.txt"
PACKAGES = ("h5py", "stable-baselines3", "torch")
PEER = "stable-baselines3"
LIMIT_SECONDS = 3600
# By the key of a measurement.
FIGURES = {"seconds": "environment steps/s",
           "cpu_seconds": "environment steps per CPU second"}


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--updates", type=int, default=13,
                        help="of 8,000 environment steps each")
    parser.add_argument("--output", type=pathlib.Path, help="a folder")
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with %s instead of bench/.venv" %
                        ", ".join(PACKAGES))
    return parser.parse_args()


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Runner(contestants.Runner):
    """Runs one side; gives its steps, seconds and returns."""

    def __init__(self, python, trainer, updates):
        super().__init__("cpu", python, trainer)
        self._updates = updates

    def _peer(self, *arguments):
        output = processes.run(
            [self._python, str(contestants.BENCH / "peers/sb3_ppo.py"),
             *arguments], contestants.ROOT, self._environment(), LIMIT_SECONDS)
        return json.loads(output.strip().splitlines()[-1])

    def _capstan(self):
        steps = self._updates * STREAMS * STEPS_PER_UPDATE
        with tempfile.TemporaryDirectory(prefix="capstan_bench_") as folder:
            file = folder + "/history.hdf5"
            start, cpu_start = time.perf_counter(), children_seconds()
            processes.run(
                [self._trainer, "collect", "--config=" + CONFIG,
                 "--set", "collect.output=" + file,
                 "--set", "collect.tasks=1", "--set", "collect.threads=1",
                 "--set", "collect.steps=%d" % steps],
                contestants.ROOT, self._environment(), LIMIT_SECONDS)
            figures = {"steps": steps,
                       "seconds": time.perf_counter() - start,
                       "cpu_seconds": children_seconds() - cpu_start}
            return {**figures, **self._peer("--history=" + file)}

    def measure(self, side):
        if side == PEER:
            return self._peer("--updates=%d" % self._updates)
        return self._capstan()


def summary(measurements):
    """By figure: spreads of both sides' and of the ratio; and mean returns."""
    result = {"returns": {}}
    for side in (comparison.CAPSTAN, PEER):
        result["returns"][side] = [
            statistics.mean(values) for values in
            zip(*(m["returns"] for m in measurements if m["side"] == side))]
    for key in FIGURES:
        speeds = {side: {m["round"]: m["steps"] / m[key]
                         for m in measurements if m["side"] == side}
                  for side in result["returns"]}
        result[key] = {side: comparison.spread(of.values())
                       for side, of in speeds.items() if of}
        result[key]["ratio"] = comparison.ratios(speeds[comparison.CAPSTAN],
                                                 speeds[PEER])
    return result


def tables(result):
    lines = []
    for key, figure in FIGURES.items():
        of = result[key]
        reached = (of["ratio"] is not None and
                   comparison.verdict(of["ratio"]["median"],
                                      comparison.Claim(BAR), True))
        lines.append([figure, *(
            "{median:,.0f} ({lowest:,.0f}..{highest:,.0f})".format(**of[side])
            if side in of else "" for side in (comparison.CAPSTAN, PEER)),
                      report.ratio(of["ratio"]), "%gx" % BAR, reached or ""])
    text = report.markdown_table(
        ["median (lowest..highest)", comparison.CAPSTAN, PEER, "ratio", "bar",
         "reached"], lines)
    lines = [[str(update + 1), *("%.2f" % value for value in values)]
             for update, values in enumerate(zip(*result["returns"].values()))]
    if lines:
        text += "\nMean return of an update's episodes:\n\n"
        text += report.markdown_table(["update", *result["returns"]], lines)
    return text


def describe(args, runner, python):
    return {
        "command": shlex.join(["python3", "bench/collect.py", *sys.argv[1:]]),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "commit": compare.commit(), "device_name": runner.device_name(),
        "cores": os.cpu_count(), "load": os.getloadavg()[0],
        "versions": contestants.versions(python, PACKAGES),
        "rounds": args.repeats, "updates": args.updates}


def write(folder, results):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    about = results["about"]
    (folder / "report.md").write_text("\n".join([
        "# Capstan's PPO and stable-baselines3's on a darkroom\n",
        "`%s`, %s, commit %s; %s, %d cores, load %.1f; %s.\n" % (
            about["command"], about["date"], about["commit"],
            about["device_name"], about["cores"], about["load"],
            ", ".join("%s %s" % item for item in about["versions"].items())),
        tables(results["result"])]))


def main():
    args = parse()
    if args.trainer is None:
        contestants.ensure_trainer()
    python = args.python or contestants.ensure_peer(REQUIREMENTS, PACKAGES)
    folder = args.output or contestants.ROOT / "runs/bench" / (
        datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
    runner = Runner(python, args.trainer or contestants.TRAINER, args.updates)
    measurements = []
    about = describe(args, runner, python)
    for round_ in range(args.repeats):
        for side in comparison.in_turn((comparison.CAPSTAN, PEER), round_):
            measurements.append(
                {"round": round_, "side": side, **runner.measure(side)})
            print("%s: %.0f steps/s" % (side, measurements[-1]["steps"] /
                                        measurements[-1]["seconds"]),
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
