#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`trainer tokenize` and Hugging Face's tokenizers on the same text, in turn.

    python3 bench/text_to_tokens.py [--tokenizer FOLDER] [--text FILE] [--repeats 5]

One thread each. A document is the text; each contestant tokenizes it
--documents times and counts tokens, which must be equal. Ours reads the text
and writes the file of tokens within its time; theirs has the text in memory and
keeps the ids. A pair is one run of each, every other pair in reverse order; the
ratio of a pair is that of its two speeds. Prints medians and spreads.

Hugging Face's package is installed in bench/.venv at need.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import contestants
import processes

PACKAGES = ("tokenizers",)
LIMIT_SECONDS = 600
TOKENIZER = contestants.ROOT / "tests/golden/testdata/tokenizer_smollm"
BAR = 5.0  # what the ratio must reach

# Its arguments: tokenizer.json, the text, how often.
PEER = """
import json, sys, time
import tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
tokenizer.no_truncation()
tokenizer.no_padding()
text = open(sys.argv[2], encoding="utf-8", newline="").read()
documents = int(sys.argv[3])
tokens = 0
begin = time.perf_counter()
for _ in range(documents):
    tokens += len(tokenizer.encode(text, add_special_tokens=False).ids)
seconds = time.perf_counter() - begin
print(json.dumps({"tokens": tokens, "seconds": seconds}))
"""


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=TOKENIZER,
                        help="a folder with a tokenizer.json")
    parser.add_argument("--text", type=pathlib.Path,
                        default=contestants.TEXT, help="UTF-8")
    parser.add_argument("--documents", type=int, default=4,
                        help="how often the text is tokenized in a run")
    parser.add_argument("--repeats", type=int, default=5, help="pairs")
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with tokenizers instead of "
                        "bench/.venv")
    args = parser.parse_args()
    if args.repeats < 1 or args.documents < 1:
        parser.error("--repeats and --documents must be at least 1")
    return args


def summary_of(output):
    """Tokens and seconds of the line that `trainer tokenize` ends with."""
    found = re.search(r"tokens: ([\d,]+) tokens, .* in (\d+\.\d+) s ", output)
    if found is None:
        raise processes.RunError("no summary in %r" % output)
    return int(found[1].replace(",", "")), float(found[2])


def run_ours(trainer, args):
    with tempfile.TemporaryDirectory() as folder:
        output = processes.run(
            [str(trainer.resolve()), "tokenize", "--threads=1",
             "--tokenizer=%s" % args.tokenizer.resolve(),
             "--output=%s/out" % folder] +
            ["--input=%s" % args.text.resolve()] * args.documents,
            folder, None, LIMIT_SECONDS)
    return summary_of(output)


def run_theirs(python, args):
    environment = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1",
                   "PATH": "/usr/bin:/bin"}
    result = json.loads(processes.run(
        [str(python), "-c", PEER,
         str(args.tokenizer.resolve() / "tokenizer.json"),
         str(args.text.resolve()), str(args.documents)],
        contestants.ROOT, environment, LIMIT_SECONDS))
    return result["tokens"], result["seconds"]


def spread(values):
    return "%.1f (%.1f to %.1f)" % (statistics.median(values), min(values),
                                    max(values))


def main():
    args = parse()
    trainer = args.trainer
    if trainer is None:
        contestants.ensure_trainer()
        trainer = contestants.TRAINER
    python = args.python or contestants.ensure_peer(packages=PACKAGES)
    megabytes = args.text.stat().st_size * args.documents / 1e6
    speeds = {"ours": [], "theirs": []}
    counts = set()
    for pair in range(args.repeats):
        runs = [("ours", lambda: run_ours(trainer, args)),
                ("theirs", lambda: run_theirs(python, args))]
        for name, run in runs if pair % 2 == 0 else reversed(runs):
            tokens, seconds = run()
            counts.add(tokens)
            speeds[name].append(megabytes / seconds)
    ratios = [a / b for a, b in zip(speeds["ours"], speeds["theirs"])]
    version = subprocess.run(
        [str(python), "-c",
         "import tokenizers; print(tokenizers.__version__)"],
        check=True, capture_output=True, text=True).stdout.strip()
    print("%s of %s, %.1f MB, one thread, %d pairs" % (
        args.tokenizer.name, args.text.name, megabytes, args.repeats))
    print("Capstan             %s MB/s" % spread(speeds["ours"]))
    print("tokenizers %-8s %s MB/s" % (version, spread(speeds["theirs"])))
    print("ratio               %s, must be at least %.0f" % (
        spread(ratios), BAR))
    if len(counts) != 1:
        print("the numbers of tokens differ: %s" % sorted(counts))
        return 1
    return 0 if statistics.median(ratios) >= BAR else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except processes.RunError as error:
        sys.exit("ERROR: %s" % error)
