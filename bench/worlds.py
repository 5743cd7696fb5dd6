#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run whose hosts die and come while it goes on, beside the undisturbed one.

    ./bazelw build //trainer:all
    bench/worlds.py [--minutes=30] [--every=30] [--worlds=4,3,5,2,6] [--strategy=capstan.ddp]

Hosts are processes of this machine, with a rank each. Every so many seconds one is killed
(SIGKILL to launcher and rank); of the others, as many leave with notice (SIGTERM) or come
as the next world needs.
Then the same steps are done by one rank that nobody disturbs, with the same deterministic
sums. Prints a table in Markdown: each kind of change, and the seconds without progress;
goodput (the share of the time that went into steps that count); both runs' sha256.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import contestants

PORT = 29590
POLL_SECONDS = 0.005


def steps_in(folder):
    try:
        with open(folder / "metrics.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []
    return [line for line in lines if "loss" in line]


def command(config, folder, strategy, settings):
    args = [contestants.TRAINER, f"--config={config}"]
    for setting in (f"output_dir={folder}", f"strategy={strategy}",
                    "train.deterministic=true", "train.sample_prompts=",
                    "train.log_every=1000000", *settings):
        args += ["--set", setting]
    return [str(arg) for arg in args]


class Hosts:
    """The processes of a run, in the order of their coming."""

    def __init__(self, arguments, logs):
        self.arguments = arguments
        self.logs = logs
        self.living = []
        self.leaving = []
        self.started = 0

    def start(self):
        self.started += 1
        log = open(self.logs / f"host{self.started}.log", "w", encoding="utf-8")
        self.living.append(subprocess.Popen(
            self.arguments, stdout=log, stderr=log, start_new_session=True,
            env=dict(os.environ, OMP_NUM_THREADS="1",
                     CAPSTAN_HOST_ID=f"host{self.started}")))

    def leave(self, index):
        """Tells a host, as a spot instance is told, that it goes."""
        process = self.living.pop(index)
        process.terminate()
        self.leaving.append(process)

    def kill(self, index):
        process = self.living.pop(index)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, and been waited for
        process.wait()

    def ended(self):
        return all(process.poll() is not None for process in self.living)

    def end(self):
        self.living += self.leaving
        while self.living:
            self.kill(0)


class Lines:
    """The number of a file's lines; what was read isn't read again."""

    def __init__(self, path):
        self.path = path
        self.read = 0
        self.lines = 0

    def count(self):
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size < self.read:  # cut, for steps that are done again
            self.read = self.lines = 0
        if size > self.read:
            with open(self.path, "rb") as file:
                file.seek(self.read)
                more = file.read()
            self.read += len(more)
            self.lines += more.count(b"\n")
        return self.lines


def disturb(hosts, metrics, worlds, every, chance):
    """Changes the world until the run has ended; returns (before, after, pause)."""
    pauses = []
    at = 0
    next_change = None
    file = Lines(metrics)
    lines, since, typical = 0, time.monotonic(), []
    changing = None  # the worlds, the time, and the steps that were done
    while not hosts.ended():
        now = time.monotonic()
        count = file.count()
        if changing is not None and count > changing[2]:
            usual = statistics.median(typical[-50:]) if typical else 0.0
            pauses.append((*changing[0], max(0.0, now - changing[1] - usual)))
            changing = None
        elif changing is None and count == lines + 1 and lines > 0:
            typical.append(now - since)
        if count != lines:
            lines, since = count, now
            next_change = next_change or now + every
        if next_change is not None and now >= next_change and changing is None:
            before, after = worlds[at % len(worlds)], worlds[(at + 1) % len(worlds)]
            at += 1
            next_change = now + every
            hosts.kill(chance.randrange(len(hosts.living)))
            while len(hosts.living) > after:
                hosts.leave(chance.randrange(len(hosts.living)))
            changing = ((before, after), now, lines)
            while len(hosts.living) < after:
                hosts.start()
        time.sleep(POLL_SECONDS)
    return pauses


def sha256(folder):
    weights = (folder / "final" / "model.safetensors").read_bytes()
    return hashlib.sha256(weights).hexdigest()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=30)
    parser.add_argument("--worlds", default="4,3,5,2,6")
    parser.add_argument("--strategy", default="capstan.ddp")
    parser.add_argument("--steps_per_second", type=float, default=8,
                        help="how fast this machine is, for the number of steps")
    parser.add_argument("--config", default=contestants.ROOT / "configs" /
                        "run_distributed.pbtxt")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    worlds = [int(world) for world in args.worlds.split(",")]
    steps = int(args.minutes * 60 * args.steps_per_second)
    settings = ["batch.micro_batch_size=1", "batch.global_batch_size=60",
                f"train.max_steps={steps}", "launch.processes=1",
                "train.save_every=20", "train.eval_every=0", *args.set]
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        changing = [f"launch.rendezvous=127.0.0.1:{PORT}",
                    f"launch.max_processes={max(worlds)}",
                    f"launch.nodes={worlds[0]}", "launch.max_restarts=10000"]
        hosts = Hosts(command(args.config, work / "run", args.strategy,
                              settings + changing), work)
        try:
            for _ in range(worlds[0]):
                hosts.start()
            pauses = disturb(hosts, work / "run" / "metrics.jsonl", worlds,
                             args.every, random.Random(1))
        finally:
            hosts.end()
        lines = steps_in(work / "run")
        if [line["step"] for line in lines] != list(range(1, steps + 1)):
            for log in sorted(work.glob("host*.log")):
                print(log.name, log.read_text()[-600:], file=sys.stderr)
            sys.exit("steps are missing, or there twice")
        subprocess.run(command(args.config, work / "quiet", "capstan.single",
                               settings), check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        quiet = steps_in(work / "quiet")
        print("| worlds | changes | median s without a step | largest |")
        print("|---|---|---|---|")
        for change in sorted({pause[:2] for pause in pauses}):
            some = [pause[2] for pause in pauses if pause[:2] == change]
            print(f"| {change[0]} to {change[1]} | {len(some)} | "
                  f"{statistics.median(some):.2f} | {max(some):.2f} |")
        span = lines[-1]["time"] - lines[0]["time"]
        lost = sum(pause[2] for pause in pauses)
        print(f"\n{steps} steps in {span:.0f} s, {len(pauses)} changes, "
              f"{hosts.started} hosts; {lost:.1f} s without a step: goodput "
              f"{1 - lost / span:.1%}")
        same = [a["loss"] for a in lines] == [b["loss"] for b in quiet]
        print(f"losses of all steps {'equal' if same else 'DIFFER'}; sha256 "
              f"{sha256(work / 'run')[:16]}, undisturbed "
              f"{sha256(work / 'quiet')[:16]}")


if __name__ == "__main__":
    main()
