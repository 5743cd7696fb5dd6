#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""This tree's speed beside another commit's, in turn, in one run.

    python3 bench/against.py COMMIT [--shapes tiny,mini,smollm2-135m]
        [--rounds 5] [--keep]
    python3 bench/against.py --table

Builds COMMIT in a worktree beside (below --beside, where it stays for the next
time), then runs in each round, every other one in reverse order, both commits'
training of each shape (as compare.py has them: two ranks of one thread, ddp)
and their generation on one core, by a model of SmolLM2-135M's shape. Prints the
medians, and the ratios of the same round with the lowest and highest: more than
1 is this tree ahead. A figure has changed if at most one round in eight is on
the other side of 1 than the others, and the median is off by 2 % or more.

--keep adds the measurement of a clean tree to bench/speed.jsonl; --table prints the last ten of
those that changed a figure, for bench/README.md.
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import compare
import comparison
import contestants
import generate
import processes
import report

KEPT = contestants.BENCH / "speed.jsonl"
BESIDE = pathlib.Path.home() / ".cache/capstan/against"
SHAPES = ["tiny", "mini", "smollm2-135m"]
READY, GENERATION = "ready s", "generation tokens/s"
MODEL = "smollm2-135m"  # whose shape generates
NEW_TOKENS = 8, 72      # of the two texts whose difference in time is taken
PROMPT = generate.PROMPT * 8
TRIES = 3
SHOWN = 10       # lines of the table
CHANGED = 0.02   # a smaller change isn't one
DISSENT = 8      # rounds of which one may say otherwise


def built(commit, beside):
    """The root of a worktree of that commit, with its trainer built."""
    root = beside / commit
    if not root.exists():
        beside.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "worktree", "add", "--force", "--detach",
                        str(root), commit], cwd=contestants.ROOT, check=True,
                       capture_output=True)
    subprocess.run([str(root / "bazelw"), "build", "//trainer:all",
                    "//datasets/samples:libtorch_headers.txt"], cwd=root,
                   check=True)
    subprocess.run([str(root / "bazelw"), "shutdown"], cwd=root, check=True)
    return root


def made_model(runner, folder):
    """A Hugging Face folder of MODEL's shape with nearly random weights, in
    which no token ends a text."""
    trained = runner.train(comparison.Contestant(
        MODEL, "single", comparison.CAPSTAN), folder / "made",
        {"train.max_steps": 1, "launch.processes": 1})
    return generate.without_end(trained / "final", folder / "model")


class Side:
    """A commit's trainer."""

    def __init__(self, root):
        self._trainer = root / "bazel-bin/trainer/trainer"
        # Both read this tree's text.
        self.runner = contestants.Runner("cpu", sys.executable, self._trainer,
                                         root=root)

    def shape(self, shape):
        summary = self.runner.measure(comparison.Contestant(
            shape, "ddp", comparison.CAPSTAN))
        return {shape + " tokens/s": summary["tokens_per_second"],
                **({READY: summary["ready_seconds"]} if shape == "tiny"
                   else {})}

    def generation(self, model):
        """Tokens/s of a greedy text."""
        def seconds(tokens):
            begin = time.perf_counter()
            processes.run(
                ["taskset", "-c", "0", str(self._trainer), "generate",
                 "--model=%s" % model, "--greedy", "--prompt=" + PROMPT,
                 "--max_new_tokens=%d" % tokens], contestants.ROOT,
                dict(os.environ, OMP_NUM_THREADS="1"),
                contestants.RUN_LIMIT_SECONDS)
            return time.perf_counter() - begin
        for _ in range(TRIES):
            short, long_ = (seconds(tokens) for tokens in NEW_TOKENS)
            if long_ > short:
                return {GENERATION: (NEW_TOKENS[1] - NEW_TOKENS[0]) /
                        (long_ - short)}
        raise processes.RunError(
            "a longer text took no longer than a short one %d times: this "
            "machine is too busy" % TRIES)


def measured(sides, shapes, model, rounds):
    """By side, a dict of figures for each round."""
    found = {name: [] for name in sides}
    for round_ in range(rounds):
        figures = {name: {} for name in sides}
        for part in shapes + [GENERATION]:
            for name in comparison.in_turn(list(sides), round_):
                side = sides[name]
                figures[name].update(side.generation(model)
                                     if part == GENERATION
                                     else side.shape(part))
                print("round %d: %s: %s" % (round_ + 1, name, part),
                      file=sys.stderr)
        for name in sides:
            found[name].append(figures[name])
    return found


def row(figure, ours, theirs):
    """A figure's spread on both sides and its ratio, of which more than 1 is
    this tree ahead."""
    mine = dict(enumerate(r[figure] for r in ours))
    others = dict(enumerate(r[figure] for r in theirs))
    better, worse = (others, mine) if figure == READY else (mine, others)
    return {"figure": figure, "ours": comparison.spread(mine.values()),
            "theirs": comparison.spread(others.values()),
            "ratio": comparison.ratios(better, worse), "rounds": len(mine),
            "ahead": sum(better[r] > worse[r] for r in mine)}


def changed(row_):
    """Whether a figure is another one than before."""
    fewer = min(row_["ahead"], row_["rounds"] - row_["ahead"])
    return (abs(row_["ratio"]["median"] - 1) >= CHANGED
            and fewer * DISSENT <= row_["rounds"])


def number(value):
    return "{:,.0f}".format(value) if value >= 1000 else "%.3g" % value


def table(record):
    """A measurement as Markdown."""
    return report.markdown_table(
        ["figure", record["commit"], record["against"],
         "ratio (lowest..highest)", ""],
        [[r["figure"], number(r["ours"]["median"]),
          number(r["theirs"]["median"]), report.ratio(r["ratio"]),
          "changed" if changed(r) else ""] for r in record["rows"]])


def history(records):
    """The last measurements in which a figure changed, newest first."""
    lines = []
    for record in reversed(records):
        news = [r for r in record["rows"] if changed(r)]
        if news:
            lines.append([
                record["date"], record["commit"], record["against"],
                "; ".join("%s %s" % (r["figure"], report.ratio(r["ratio"]))
                          for r in news)])
    return report.markdown_table(
        ["date", "commit", "against", "what changed (lowest..highest)"],
        lines[:SHOWN])


def kept():
    if not KEPT.exists():
        return []
    return [json.loads(line) for line in KEPT.read_text().splitlines()]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("commit", nargs="?", metavar="COMMIT")
    parser.add_argument("--shapes", type=compare.listed, default=SHAPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=pathlib.Path, default=BESIDE,
                        help="where other commits' worktrees are")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table == bool(args.commit):
        parser.error("give a commit, or --table")
    for shape in args.shapes:
        if shape not in contestants.WORK["cpu"]:
            parser.error("--shapes: %s is none of %s" % (
                shape, ", ".join(contestants.WORK["cpu"])))
    least = 3 if args.keep else 1
    if args.rounds < least:
        parser.error("--rounds must be at least %d" % least)
    return args


def main():
    args = parse()
    if args.table:
        print(history(kept()), end="")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--short",
         args.commit + "^{commit}"], cwd=contestants.ROOT, text=True,
        capture_output=True, check=False).stdout.strip()
    if not asked:
        sys.exit("there is no commit %s" % args.commit)
    contestants.ensure_trainer("//datasets/samples:libtorch_headers.txt")
    sides = {"this tree": Side(contestants.ROOT),
             asked: Side(built(asked, args.beside))}
    load = os.getloadavg()[0]
    if load > compare.BUSY_LOAD:
        print("this machine is busy (load %.1f): timings will be off" % load,
              file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="capstan_bench_") as folder:
        model = made_model(sides["this tree"].runner, pathlib.Path(folder))
        found = measured(sides, args.shapes, model, args.rounds)
    ours, theirs = found.values()
    record = {"date": datetime.date.today().isoformat(),
              "commit": compare.commit(), "against": asked,
              "machine": sides["this tree"].runner.device_name(),
              "cores": os.cpu_count(), "load": load, "rounds": args.rounds,
              "rows": [row(figure, ours, theirs) for figure in ours[0]]}
    print(table(record), end="")
    if args.keep and record["commit"].endswith("+"):
        sys.exit("not kept: the working tree has more than its commit")
    if args.keep:
        with KEPT.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
