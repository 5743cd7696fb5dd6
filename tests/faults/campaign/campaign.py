#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults at random moments, and what they cost.

  tests/faults/campaign/campaign.py --times=100
  tests/faults/campaign/campaign.py --cells=kill_rank,stop_rank --hours=1 --seed=7
  tests/faults/campaign/campaign.py --times=100,kill_rank=1700 --log=FOLDER
  tests/faults/campaign/campaign.py --log=FOLDER --table

Each cell starts small runs, disturbs them, lets them go on or starts them again, and
compares the whole curve and the final weights with those of an undisturbed run. The
cells take turns. With --log each try is a line of FOLDER/tries.jsonl as soon as it is
done, and what is there already counts: a campaign that was stopped goes on. Needs a
built trainer; cells with full disks, hosts and links need root, and say so.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cells  # noqa: E402,F401  pylint: disable=unused-import
import file_cells  # noqa: E402,F401  pylint: disable=unused-import
import host_cells  # noqa: E402,F401  pylint: disable=unused-import
import mirror_cells  # noqa: E402,F401  pylint: disable=unused-import
from runs import Workshop, left_over  # noqa: E402
from tries import CELLS, Try  # noqa: E402

# Where tc is, which Bazel's PATH lacks.
os.environ["PATH"] += ":/usr/sbin:/sbin"
ROOT = pathlib.Path(__file__).resolve().parents[3]


def seconds(values):
    values = [value for value in values if value is not None]
    if not values:
        return ""
    return f"{statistics.median(values):.2f} ({max(values):.2f})"


def row(name, tries):
    rightly = sum(one.rightly for one in tries)
    same = sum(one.same for one in tries)
    lost = [one.lost for one in tries]
    return (f"| {name} | {len(tries)} | {seconds([t.named for t in tries])} | "
            f"{rightly} | {seconds([t.back for t in tries])} | "
            f"{sum(lost)} ({max(lost)}) | {same} |")


HEAD = ("| fault | tries | seconds until named, median (worst) | rightly | seconds "
        "to the next step | steps lost, all (worst) | same result |\n"
        "|---|---|---|---|---|---|---|")


def print_table(everything):
    print(HEAD)
    for name in CELLS:
        if everything.get(name):
            print(row(name, everything[name]))
    places = collections.Counter(
        one.doing for name in ("kill_rank", "kill_launcher")
        for one in everything.get(name, []))
    if places:
        print("\nWhat the killed were doing: " + ", ".join(
            f"{place} {count}" for place, count in places.most_common()))
    kills = sum(len(everything.get(name, []))
                for name in ("kill_rank", "kill_launcher", "kill_host"))
    print(f"{kills} kills in all")


class Log:
    """The tries so far, on disk if there is a folder for them."""

    def __init__(self, folder):
        self.tries = {}
        self.runs = collections.Counter()
        self.path = None
        if folder is None:
            return
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "tries.jsonl"
        if not self.path.exists():
            return
        for line in self.path.read_text().splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue  # cut short
            name = values.pop("cell")
            self.runs[name] = max(self.runs[name], values.pop("run") + 1)
            self.tries.setdefault(name, []).append(Try(**values))

    def add(self, name, run, tries):
        self.runs[name] = run + 1
        self.tries.setdefault(name, []).extend(tries)
        if self.path is None:
            return
        with open(self.path, "a") as file:
            for one in tries:
                file.write(json.dumps(dict(vars(one), cell=name, run=run)) + "\n")

    def done(self, name):
        return len(self.tries.get(name, []))


def wanted_times(text, names):
    """ "100,kill_rank=1700" as a number for each cell."""
    times = {}
    for word in text.split(","):
        name, _, number = word.rpartition("=")
        if name and name not in CELLS:
            raise SystemExit(f"--times: there is no cell {name}")
        for one in [name] if name else names:
            times[one] = int(number)
    return {name: times.get(name, 0) for name in names}


def run_all(wanted, deadline, seed, shop, log):
    """Each cell in its turn, the one that has done the least of its share first."""
    failed = 0
    empty = collections.Counter()
    left = [name for name in wanted if log.done(name) < wanted[name]]
    while left and time.monotonic() < deadline:
        name = min(left, key=lambda cell: log.done(cell) / wanted[cell])
        number = log.runs[name]
        tries = CELLS[name](shop, random.Random(f"{seed}/{name}/{number}"))
        if tries is None:
            print(f"{name}: skipped, needs root, ip, tc or cc", flush=True)
            left.remove(name)
            continue
        for one in tries:
            if one.note or not (one.same and one.rightly):
                failed += 1
                print(f"{name}, seed {seed}, run {number}: {one}", flush=True)
        log.add(name, number, tries)
        # One that finds nothing to disturb, again and again.
        empty[name] = 0 if tries else empty[name] + 1
        if log.done(name) >= wanted[name] or empty[name] > 20:
            left.remove(name)
        if sys.stdout.isatty():
            total = sum(log.done(cell) for cell in wanted)
            print(f"\r{total} of {sum(wanted.values())}", end="", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--trainer",
                        default=str(ROOT / "bazel-bin/trainer/trainer"))
    parser.add_argument("--corpus",
                        default=str(ROOT / "tests/testdata/corpus.txt"))
    parser.add_argument("--tokenizer",
                        default=str(ROOT / "datasets/samples/tokenizer"))
    parser.add_argument("--cells", default=",".join(CELLS),
                        help="of: " + ", ".join(CELLS))
    parser.add_argument("--times", default="3",
                        help="of each cell; CELL=TIMES for one of them")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="a folder for all tries")
    parser.add_argument("--table", action="store_true",
                        help="only print what --log's folder has")
    options = parser.parse_args()
    log = Log(options.log)
    if options.table:
        print_table(log.tries)
        return 0
    before = set(left_over())
    deadline = time.monotonic() + 3600 * options.hours
    wanted = wanted_times(options.times, options.cells.split(","))
    # As Ctrl-C: what runs is ended, and the folder removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shop = Workshop(options.trainer, options.corpus, options.tokenizer)
    try:
        failed = run_all(wanted, deadline, options.seed, shop, log)
    finally:
        shop.close()
    print_table(log.tries)
    for path in sorted(set(left_over()) - before):
        print(f"left over: {path}")
        failed += 1
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
