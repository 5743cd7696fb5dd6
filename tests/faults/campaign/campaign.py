#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults at random moments, and what they cost.

  tests/faults/campaign/campaign.py --times=100
  tests/faults/campaign/campaign.py --cells=kill_rank,stop_rank --hours=1 --seed=7

Each cell starts small runs, disturbs them, lets them go on or starts them again, and
compares the whole curve and the final weights with those of an undisturbed run. Needs
a built trainer; cells with full disks, hosts and links need root, and say so.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cells import CELLS  # noqa: E402
import host_cells  # noqa: E402,F401  (more CELLS)
from runs import Workshop, left_over  # noqa: E402

# Where tc is, which Bazel's PATH lacks.
os.environ["PATH"] += ":/usr/sbin:/sbin"
ROOT = pathlib.Path(__file__).resolve().parents[3]


def seconds(values):
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} / {max(values):.2f}"


def row(name, tries):
    rightly = sum(one.rightly for one in tries)
    same = sum(one.same for one in tries)
    lost = [one.lost for one in tries]
    return (f"| {name} | {len(tries)} | {seconds([t.named for t in tries])} | "
            f"{rightly} | {seconds([t.back for t in tries])} | {sum(lost)} | "
            f"{same} |")


HEAD = ("| fault | tries | seconds until named, median / worst | rightly | seconds "
        "to the next step | steps lost | same result |\n"
        "|---|---|---|---|---|---|---|")


def run_cell(name, times, deadline, seed, shop):
    tries = []
    number = 0
    while len(tries) < times and time.monotonic() < deadline:
        chance = random.Random(f"{seed}/{name}/{number}")
        number += 1
        done = CELLS[name](shop, chance)
        if done is None:
            return None
        for one in done:
            if one.note or not (one.same and one.rightly):
                print(f"{name}, seed {seed}, run {number - 1}: {one}", flush=True)
        tries += done
        if sys.stdout.isatty():
            print(f"\r{name}: {len(tries)} of {times}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    return tries


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trainer",
                        default=str(ROOT / "bazel-bin/trainer/trainer"))
    parser.add_argument("--corpus",
                        default=str(ROOT / "tests/testdata/corpus.txt"))
    parser.add_argument("--cells", default=",".join(CELLS),
                        help="of: " + ", ".join(CELLS))
    parser.add_argument("--times", type=int, default=3, help="of each cell")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="a file for all tries")
    options = parser.parse_args()
    before = set(left_over())
    deadline = time.monotonic() + 3600 * options.hours
    shop = Workshop(options.trainer, options.corpus)
    failed = 0
    everything = {}
    print(HEAD, flush=True)
    try:
        for name in options.cells.split(","):
            tries = run_cell(name, options.times, deadline, options.seed, shop)
            if tries is None:
                print(f"| {name} | skipped: needs root, ip, tc or cc | | | | | |")
                continue
            everything[name] = [vars(one) for one in tries]
            print(row(name, tries), flush=True)
            failed += sum(not (one.same and one.rightly) for one in tries)
    finally:
        shop.close()
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(everything, indent=1))
    for path in sorted(set(left_over()) - before):
        print(f"left over: {path}")
        failed += 1
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
