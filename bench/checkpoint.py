#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a run's state, beside torch.distributed.checkpoint's.

    python3 bench/checkpoint.py [--parameters 135000000] [--repeats 3]
        [--folder FOLDER]

One process and one disk, FOLDER's; masters and AdamW's moments in float32, 12
bytes a parameter, of random values. Both flush what they write. Beside them the
disk: as many random bytes written in megabytes and flushed, as dd conv=fsync
does, and read. In each round the three take turns, in another order each time;
each saves, loads from the page cache, loads from the disk (its files dropped
from the cache, if the system lets them go), and removes its files, so that the
disk holds one state at a time. If memory can't hold the state, it takes the
largest that it can, and says so; if it can't hold the files beside it, loads
are from the disk alone. Prints a table of medians, lowest and highest. PyTorch
comes from bench/.venv, made the first time, or --python.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time

import contestants
import processes
import report

OURS = contestants.ROOT / "bazel-bin/bench/checkpoint"
PEER = contestants.BENCH / "peers/torch_checkpoint.py"
BYTES = 12  # a parameter
SPARE_BYTES = 2.5e9  # for programs, and what others use
CHUNK = 1 << 20
LIMIT_SECONDS = 1800
NAMES = {"capstan": "capstan", "torch": "torch.distributed.checkpoint",
         "disk": "the disk"}


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parameters", type=int, default=135_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--ours", type=pathlib.Path,
                        help="checkpoint.cc's program, instead of building it")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with torch instead of bench/.venv")
    return parser.parse_args()


def available_memory():
    for line in open("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo doesn't say what is available")


def fitting(parameters, memory):
    """How many parameters' state fits that memory, at most `parameters`."""
    return min(parameters, int((memory - SPARE_BYTES) / BYTES / 1e6) * 10**6)


def drop_from_cache(folder):
    """Has the kernel drop the folder's files from its cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def disk(folder, what, size):
    file, begin = folder / "bytes", None
    if what == "save":
        chunk = os.urandom(64 * CHUNK)
        begin = time.monotonic()
        with open(file, "wb", buffering=0) as out:
            for at in range(0, size, CHUNK):
                place = at % len(chunk)
                out.write(chunk[place:place + min(CHUNK, size - at)])
            os.fsync(out.fileno())
    else:
        buffer = bytearray(CHUNK)
        begin = time.monotonic()
        with open(file, "rb", buffering=0) as read:
            while read.readinto(buffer):
                pass
    return {"seconds": time.monotonic() - begin}


class Runner:
    """Runs one side's save or load."""

    def __init__(self, ours, python, parameters):
        self._programs = {"capstan": [str(ours)],
                          "torch": [str(python), str(PEER)]}
        self._parameters = parameters

    def measure(self, name, folder, what):
        """The seconds, and the CPU seconds of all but the disk, that the
        program says of itself."""
        if name == "disk":
            return disk(folder, what, BYTES * self._parameters)
        out = processes.run(
            [*self._programs[name], str(folder), what, str(self._parameters)],
            contestants.ROOT, dict(os.environ), LIMIT_SECONDS)
        return json.loads(out.splitlines()[-1])

    def turn(self, name, folder, cached):
        """All figures of one side, by what it did."""
        folder.mkdir()
        try:
            took = {"save, flushed": self.measure(name, folder, "save")}
            if cached:
                took["load, page cache"] = self.measure(name, folder, "load")
            drop_from_cache(folder)
            took["load, disk"] = self.measure(name, folder, "load")
        finally:
            shutil.rmtree(folder)
        for what, figures in took.items():
            print(name, what, figures, file=sys.stderr, flush=True)
        return took


def table(turns, size):
    """As Markdown; turns: [(name, figures by what was done)]."""
    lines = []
    for what in turns[0][1]:
        for name, label in NAMES.items():
            runs = [took[what] for n, took in turns if n == name]
            if not runs:
                continue
            seconds = [run["seconds"] for run in runs]
            middle = statistics.median(seconds)
            cpu = [run["cpu"] for run in runs if "cpu" in run]
            lines.append([
                what, label, "%.2f (%.2f..%.2f)" % (
                    middle, min(seconds), max(seconds)),
                "%.2f" % statistics.median(cpu) if cpu else "",
                "%.2f" % (size / 1e9 / middle)])
    return report.markdown_table(["", "", "seconds", "CPU s", "GB/s"], lines)


def main():
    args = parse()
    # So that what was written is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.ours is None:
        contestants.ensure_trainer("//bench:checkpoint")
    python = args.python or contestants.ensure_peer(packages=("torch",))
    memory = available_memory()
    parameters = fitting(args.parameters, memory)
    if parameters < args.parameters:
        print("%.1f GB of memory are available: the state is that of %.2f "
              "billion parameters instead of %.2f" % (
                  memory / 1e9, parameters / 1e9, args.parameters / 1e9))
    size = BYTES * parameters
    cached = 2 * size + SPARE_BYTES < memory
    free = shutil.disk_usage(args.folder).free
    if free < 1.05 * size:
        sys.exit("%s: %.1f GB are free, a state has %.1f GB; give another "
                 "--folder" % (args.folder, free / 1e9, size / 1e9))
    runner, turns = Runner(args.ours or OURS, python, parameters), []
    with tempfile.TemporaryDirectory(prefix="checkpoint-",
                                     dir=args.folder) as root:
        for number in range(args.repeats):
            names, first = list(NAMES), number % len(NAMES)
            for name in names[first:] + names[:first]:
                turns.append((name, runner.turn(
                    name, pathlib.Path(root).resolve() / name, cached)))
    print("%.2f GB; median (lowest..highest) of %d rounds\n\n%s" % (
        size / 1e9, args.repeats, table(turns, size)), end="")


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
