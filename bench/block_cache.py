#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A LLaDA's block cache and confidence threshold: how fast, and which texts.

    python3 bench/block_cache.py --model FOLDER --prompts FILE
        [--new_tokens 96] [--block_length 32] [--refresh 1,4,8]
        [--thresholds 0] [--temperature 0] [--remasking LOW_CONFIDENCE]
        [--trainer PROGRAM]

A text after each of FILE's prompts, one a line, by one seed, with and without
what a row names; on one thread. A time is the processor's for all prompts less
that for the first alone, so that start and loading don't count. Prints a table:
new characters a second, how many times those of the first row, the share of
characters that stand in the first row's texts at the same place, and how many of
the texts are the same.
"""

import argparse
import json
import os
import pathlib
import resource
import tempfile

import contestants
import processes
import report

LIMIT_SECONDS = 3600


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--prompts", type=pathlib.Path, required=True)
    parser.add_argument("--new_tokens", type=int, default=96)
    parser.add_argument("--block_length", type=int, default=32)
    parser.add_argument("--refresh", default="1,4,8")
    parser.add_argument("--thresholds", default="0")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--remasking", default="LOW_CONFIDENCE",
                        choices=("LOW_CONFIDENCE", "RANDOM"))
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    return parser.parse_args()


def settings(args):
    """Rows (cache, refresh, threshold) as text; refresh "": none in a block."""
    rows = []
    for threshold in args.thresholds.split(","):
        rows.append(("NONE", "", threshold))
        for cache in ("PREFIX", "DUAL"):
            for refresh in ["", *filter(None, args.refresh.split(","))]:
                rows.append((cache, refresh, threshold))
    return rows


def generate(args, trainer, folder, prompts, setting):
    """The prompts' texts, without the prompts, and the processor's seconds."""
    cache, refresh, threshold = setting
    source, output = folder / "prompts.jsonl", folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"prompt": p}) + "\n"
                              for p in prompts))
    output.unlink(missing_ok=True)
    command = [str(trainer), "generate", "--model=%s" % args.model.absolute(),
               "--input=%s" % source, "--output=%s" % output,
               "--temperature=%g" % args.temperature,
               "--max_new_tokens=%d" % args.new_tokens]
    fields = {"block_length": args.block_length, "cache": cache,
              "confidence_threshold": threshold,
              "remasking": args.remasking}
    if refresh:
        fields["cache_refresh"] = refresh
    for field, value in fields.items():
        command += ["--set", "objective.%s=%s" % (field, value)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    processes.run(command, contestants.ROOT,
                  {**os.environ, "OMP_NUM_THREADS": "1"}, LIMIT_SECONDS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = (after.ru_utime + after.ru_stime -
               before.ru_utime - before.ru_stime)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return [row["text"] for row in rows], seconds


def agreement(texts, others):
    """The share of equal characters, and the number of equal texts."""
    equal = sum(a == b for x, y in zip(texts, others) for a, b in zip(x, y))
    most = sum(max(len(x), len(y)) for x, y in zip(texts, others))
    return equal / most, sum(x == y for x, y in zip(texts, others))


def main():
    args = parse()
    if not args.trainer:
        contestants.ensure_trainer()
    trainer = args.trainer or contestants.TRAINER
    prompts = args.prompts.read_text().splitlines()
    lines, first, first_speed = [], None, None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for setting in settings(args):
            _, start = generate(args, trainer, folder, prompts[:1], setting)
            texts, seconds = generate(args, trainer, folder, prompts, setting)
            speed = sum(len(t) for t in texts[1:]) / (seconds - start)
            if first is None:
                first, first_speed = texts, speed
            share, same = agreement(texts, first)
            cache, refresh, threshold = setting
            lines.append([cache, refresh or "-", threshold, "%.0f" % speed,
                          "%.2fx" % (speed / first_speed),
                          "%.1f %%" % (100 * share),
                          "%d of %d" % (same, len(texts))])
            print("|".join(lines[-1]), flush=True)
    print(report.markdown_table(
        ["cache", "refresh", "threshold", "characters/s", "", "equal",
         "same texts"], lines))


if __name__ == "__main__":
    main()
