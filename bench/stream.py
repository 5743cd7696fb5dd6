#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How soon a stream of shards is ready, and how fast it is: ours
(datasets/stream:stream_bench) beside Hugging Face datasets (peers/hf_stream.py).

    python3 bench/stream.py --path='/data/shards/*.parquet' --tokenizer=FOLDER
        --cache=NEW_FOLDER --python=VENV/bin/python [--repeats=3]

The shards are those of make_shards.py. A round runs: cold (the shards aren't in
the page cache, nothing is kept), warm (they are, nothing is kept), kept (what
the run before has tokenized is), resumed (at --from, whose tokens were counted
before; make that so by a longer run of stream_bench with the same --length and
--index) and the peer, warm. Prints a line of JSON for each, with the medians.
"""

import argparse
import glob
import json
import os
import pathlib
import shutil
import statistics
import subprocess

HERE = pathlib.Path(__file__).parent
BENCH = HERE.parent / "bazel-bin" / "datasets" / "stream" / "stream_bench"
TABLES = (HERE.parent / "bazel-bin" / "datasets" / "tables" /
          "libcapstan_tables.so")
LIMIT_SECONDS = 600


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--path", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--index", help="what is kept of a longer run")
    parser.add_argument("--from", dest="first", type=int, default=7000000)
    parser.add_argument("--length", type=int, default=80,
                        help="of the resumed run's samples")
    parser.add_argument("--python", help="with datasets, transformers, torch")
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def drop(path):
    """The files' pages, from the page cache."""
    for name in glob.glob(path):
        file = os.open(name, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def run(words):
    environment = dict(os.environ, CAPSTAN_TABLES_LIBRARY=str(TABLES),
                       HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    done = subprocess.run([str(word) for word in words], check=True,
                          stdout=subprocess.PIPE, env=environment, text=True,
                          timeout=LIMIT_SECONDS)
    return json.loads(done.stdout.splitlines()[-1])


def ours(args, *more):
    return run([BENCH, f"--path={args.path}", f"--tokenizer={args.tokenizer}",
                f"--seconds={args.seconds}", *more])


def one_round(args):
    shutil.rmtree(args.cache, ignore_errors=True)
    cache = [f"--cache={args.cache}", "--keep"]
    drop(args.path)
    results = {"cold": ours(args, *cache)}
    shutil.rmtree(args.cache, ignore_errors=True)
    results["warm"] = ours(args, *cache)
    results["kept"] = ours(args, *cache)
    if args.index:
        results["resumed"] = ours(
            args, f"--cache={args.index}", f"--from={args.first}",
            f"--length={args.length}", "--keep")
    if args.python:
        results["datasets"] = run(
            [args.python, HERE / "peers" / "hf_stream.py",
             f"--path={args.path}", f"--tokenizer={args.tokenizer}",
             f"--seconds={args.seconds}"])
    return results


def main():
    args = parse()
    rounds = [one_round(args) for _ in range(args.repeats)]
    for name in rounds[0]:
        figures = {}
        for figure, value in rounds[0][name].items():
            values = [results[name][figure] for results in rounds]
            figures[figure] = (value if isinstance(value, str) else
                               statistics.median(values))
        print(json.dumps({"run": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
