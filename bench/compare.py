#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capstan and PyTorch on the same work, in turn, in one run.

    python3 bench/compare.py [--shapes tiny,mini,smollm2-135m] [--repeats 5]
        [--strategies ddp,zero2,fsdp] [--peers eager,compiled]

On CPUs two ranks of one thread each, fp32, and bf16 for shapes that end in
-bf16, which are also compared with our own fp32 of the same shape; shapes that
end in -llada are trained as a LLaDA (masked diffusion), beside a Llama made
bidirectional and a plain loop, those in -lora by LoRA, beside peft; those in
-threads are one rank of two threads. On a GPU (bench/gpu.sh) one rank, bf16.
Each strategy runs beside what PyTorch has of its kind (ddp:
DistributedDataParallel, zero2: ZeroRedundancyOptimizer, fsdp: FSDP2). A round
runs all of them once, every other round in reverse order. Then each of ours
runs once more for the profile of its step.

Prints the table of medians and ratios with what must be reached, and writes to
--output (default runs/bench/TIME): report.md, results.json with every single
measurement, and ratios.png. PyTorch, transformers and matplotlib come from a
virtual environment that is made in bench/.venv the first time.
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys

import comparison
import contestants
import processes
import report

# A load of the machine before the start that spoils timings.
BUSY_LOAD = 0.5


def listed(text):
    return [part for part in text.split(",") if part]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", type=listed,
                        help="default: all of the device's")
    parser.add_argument("--strategies", type=listed,
                        help="default: those with a bar, by shape")
    parser.add_argument("--peers", type=listed, help="eager, compiled")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--neighbours", type=int, default=0,
                        help="other programs that compute meanwhile")
    parser.add_argument("--output", type=pathlib.Path, help="a folder")
    parser.add_argument("--no_profile", dest="profile", action="store_false",
                        help="without the runs for the profiles")
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    parser.add_argument("--text", type=pathlib.Path,
                        default=contestants.TEXT, help="what to train on")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with torch, transformers and "
                        "matplotlib instead of bench/.venv")
    args = parser.parse_args()
    known = comparison.DEFAULTS[args.device]
    for name, values, allowed in (
            ("shapes", args.shapes, known),
            ("strategies", args.strategies, comparison.PEER_STRATEGIES),
            ("peers", args.peers, (comparison.EAGER, comparison.COMPILED))):
        for value in values or []:
            if value not in allowed:
                parser.error("--%s: %s is none of %s" % (
                    name, value, ", ".join(allowed)))
    for name, least in (("repeats", 1), ("neighbours", 0)):
        if getattr(args, name) < least:
            parser.error("--%s must be at least %d" % (name, least))
    return args


def commit():
    """The commit of the working tree, "+" if there is more in it."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=contestants.ROOT,
                              capture_output=True, text=True,
                              check=False).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (
        "+" if changed else "")


def describe(args, runner, python):
    """What the figures depend on, for results.json and the report."""
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        print("this machine is busy (load %.1f): timings will be off" % load,
              file=sys.stderr)
    return {
        "command": shlex.join(["python3", "bench/compare.py", *sys.argv[1:]]),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "commit": commit(), "device": args.device,
        "device_name": runner.device_name(), "cores": os.cpu_count(),
        "load": load, "versions": contestants.versions(python),
        "precision": contestants.PRECISION[args.device],
        "ranks": contestants.RANKS[args.device],
        "neighbours": args.neighbours, "rounds": args.repeats,
        "work": {s: contestants.WORK[args.device][s]._asdict()
                 for s in args.shapes or comparison.DEFAULTS[args.device]},
    }


def measure(runner, contestant, round_, peak_flops):
    """One run's figures, ready to be kept."""
    load = os.getloadavg()[0]
    figures = runner.measure(contestant)
    late = figures.get("graphs_compiled_after_warm_up")
    if late:
        print("%s: %d graphs were compiled after the warm-up: its speed isn't "
              "that of the steady state" % (" ".join(contestant), late),
              file=sys.stderr)
    if peak_flops is not None:
        work = contestants.WORK[runner.device][contestant.shape]
        figures["fraction_of_peak"] = (
            figures["tokens_per_second"] * contestants.flops_per_token(
                figures["parameters"], contestants.SHAPES[contestant.shape],
                work.sequence_length) / peak_flops)
    print("round %d: %s: %.4g tokens/s" % (
        round_ + 1, " ".join(contestant), figures["tokens_per_second"]),
        file=sys.stderr)
    # Last what names the run: our summary has a "strategy" too.
    return {**figures, "load": load, "round": round_, **contestant._asdict()}


def profiles(runner, who):
    found = []
    for contestant in who:
        if contestant.side == comparison.CAPSTAN:
            found.append({"shape": contestant.shape,
                          "strategy": contestant.strategy,
                          "profile": runner.profile(contestant)})
    return found


def write(folder, results, python):
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "report.md").write_text(report.markdown(results))
    subprocess.run([str(python), str(contestants.BENCH / "plot.py"),
                    str(folder / "results.json"), str(folder / "ratios.png")],
                   check=True)


def main():
    args = parse()
    # So that what runs is ended first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.trainer is None:
        contestants.ensure_trainer()
    packages = contestants.packages_of(
        args.shapes or comparison.DEFAULTS[args.device])
    python = args.python or contestants.ensure_peer(packages=packages)
    if contestants.versions(python, packages) is None:
        sys.exit("%s lacks one of: %s" % (python, ", ".join(packages)))
    folder = args.output or contestants.ROOT / "runs/bench" / (
        datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
    folder.mkdir(parents=True, exist_ok=True)
    runner = contestants.Runner(args.device, python,
                                args.trainer or contestants.TRAINER, args.text)
    who = comparison.contestants(args.device, args.shapes, args.strategies,
                                 args.peers)
    results = {"about": describe(args, runner, python), "rows": [],
               "profiles": [], "measurements": []}
    peak = contestants.peak_flops(results["about"]["device_name"])
    # What a busy machine's other users do.
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                  for _ in range(args.neighbours)]
    try:
        for round_ in range(args.repeats):
            for contestant in comparison.in_turn(who, round_):
                results["measurements"].append(
                    measure(runner, contestant, round_, peak))
        if args.profile:
            results["profiles"] = profiles(runner, who)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
        # Hours of measurements are kept even if one of them failed.
        if results["measurements"]:
            results["rows"] = comparison.rows(args.device, who,
                                              results["measurements"])
            write(folder, results, python)
    for sentence in comparison.different_work(results["measurements"]):
        print(sentence, file=sys.stderr)
    print(report.ratio_table(results["rows"]), end="")
    for entry in results["profiles"]:
        print("\n%s, %s\n%s" % (entry["shape"], entry["strategy"],
                                report.profile_table(entry["profile"])), end="")
    print("\nWritten to %s: report.md, results.json, ratios.png" % folder)


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
