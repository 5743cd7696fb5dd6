#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DiLoCo beside data parallelism on two sites, on links of a chosen speed.

    ./bazelw build //trainer:all
    sudo bench/diloco.py [--mbit=10,100,1000] [--local_steps=50] [--steps=1000]

Sites are network namespaces, as in hosts_bench.py, with --ranks on each. A curve
doesn't depend on the network, so it is trained once, on one host; on each link
only some steps are, at least a round, for the mean time of a step. Prints a table
in Markdown: what a rank sends a step, the loss at the end, the time of a step,
and the time to the highest of the losses at the end, or to --aim.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import contestants
import hosts_bench

PORT = 29541
LIMIT_SECONDS = 3600


def read_metrics(folder):
    with open(folder / "metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def command(config, folder, strategy, *settings):
    args = [contestants.TRAINER, f"--config={config}"]
    for setting in (f"output_dir={folder}", f"strategy={strategy}",
                    "train.sample_prompts=", "train.save_every=0",
                    "schedule.total_steps=1000", *settings):
        args += ["--set", setting]
    return [str(arg) for arg in args]


def run_on(hosts, ranks, config, folder, strategy, settings):
    """Trains with ranks on each host; returns when all have ended."""
    processes = []
    for host in range(hosts.count):
        for local in range(ranks):
            processes.append(subprocess.Popen(
                ["ip", "netns", "exec", hosts.name(host)] +
                command(config, folder, strategy, *settings),
                env=hosts_bench.rank_environment(hosts, host, ranks, local,
                                                 port=PORT),
                stdout=subprocess.DEVNULL))
    try:
        for process in processes:
            if process.wait(timeout=LIMIT_SECONDS) != 0:
                raise RuntimeError(f"{strategy} failed")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def step_seconds(lines, last):
    """The mean of the last steps."""
    times = [line["step_seconds"] for line in lines if "loss" in line]
    return statistics.mean(times[-last:])


def steps_to(lines, loss):
    """The first evaluated step with that evaluation loss, or None."""
    for line in lines:
        if line.get("eval_loss", loss + 1) <= loss:
            return line["step"]
    return None


def strategies(args):
    """{name: (plugin, settings, the name whose curve it has)}."""
    sites = [f"strategy.local_steps={args.local_steps}",
             f"strategy.site_ranks={args.ranks}"]
    streamed = sites + [f"strategy.parts={args.parts}",
                        f"strategy.overlap_steps={args.overlap_steps}"]
    diloco = "capstan.diloco"
    return {
        "ddp": ("capstan.ddp", [], "ddp"),
        "fsdp": ("capstan.fsdp", [], "ddp"),
        "diloco": (diloco, sites, "diloco"),
        "streamed": (diloco, streamed, "streamed"),
        "streamed, INT8": (diloco, streamed + ["strategy.deltas=INT8"],
                           "streamed, INT8"),
    }


def train_curves(args, folder):
    """{name: the lines of its curve's evaluations}."""
    curves = {}
    for name, (plugin, settings, curve) in strategies(args).items():
        if name != curve:
            curves[name] = curves[curve]
            continue
        where = folder / f"curve {name}"
        subprocess.run(
            command(args.config, where, plugin, *settings,
                    f"train.max_steps={args.steps}",
                    f"train.eval_every={args.eval_every}",
                    f"launch.processes={2 * args.ranks}"),
            check=True, stdout=subprocess.DEVNULL)
        curves[name] = [line for line in read_metrics(where)
                        if "eval_loss" in line]
    return curves


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", default="10,100,1000")
    parser.add_argument("--ranks", type=int, default=2, help="of each site")
    parser.add_argument("--local_steps", type=int, default=50)
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--overlap_steps", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--eval_every", type=int, default=25)
    parser.add_argument("--slow_steps", type=int, default=4,
                        help="steps of ddp and fsdp that are timed")
    parser.add_argument("--aim", type=float)
    parser.add_argument("--config", default="run_distributed.pbtxt")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        curves = train_curves(args, folder)
        aim = args.aim or max(lines[-1]["eval_loss"]
                              for lines in curves.values())
        print(f"{args.config}, {args.steps} steps, two sites of {args.ranks} "
              f"ranks, local_steps: {args.local_steps}, parts: {args.parts}, "
              f"overlap_steps: {args.overlap_steps}\n")
        print("| link | strategy | MB a step | loss at the end | a step | "
              f"time to {aim:.3f} |\n|---|---|---|---|---|---|")
        for mbit in args.mbit.split(","):
            with hosts_bench.Hosts(2, float(mbit) / 1000, 1000) as hosts:
                for name, (plugin, settings, _) in strategies(args).items():
                    where = folder / f"{mbit} {name}"
                    # A whole round, once exchanges have begun to end.
                    steps, first = ((args.local_steps, args.overlap_steps + 2)
                                    if plugin == "capstan.diloco" else
                                    (args.slow_steps, 2))
                    run_on(hosts, args.ranks, args.config, where, plugin,
                           settings + [f"train.max_steps={first + steps}",
                                       "train.eval_every=0"])
                    lines = read_metrics(where)
                    seconds = step_seconds(lines, steps)
                    sent = statistics.mean(
                        line["bytes_sent"] for line in lines
                        if "bytes_sent" in line)
                    needed = steps_to(curves[name], aim)
                    time = ("not reached" if needed is None else
                            f"{needed * seconds:.0f} s ({needed} steps)")
                    print(f"| {mbit} Mbit/s | {name} | {sent / 1e6:.3f} | "
                          f"{curves[name][-1]['eval_loss']:.3f} | "
                          f"{1000 * seconds:.0f} ms | {time} |", flush=True)
    return 0


if __name__ == "__main__":
    reason = hosts_bench.why_not(contestants.TRAINER)
    if reason:
        sys.exit(f"diloco.py: {reason}")
    sys.exit(main())
