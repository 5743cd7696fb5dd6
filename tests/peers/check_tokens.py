#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a fine-tuning of ours counts the tokens that TRL's counts.

    python3 tests/peers/check_tokens.py [--rows FILE.jsonl]

The same rows of {"messages"} or {"question", "answer"} (by default some that
this script makes, of very different lengths) go through the trainer and TRL's
SFTTrainer, by one process, one epoch: padded, where the tokens of each step must
be equal, and packed, where those of the epoch must. Prints both, with our share of
padding, and ends with 1 if they differ. TRL comes from the virtual environment of
check_folders.py, unless --python names an interpreter that has it.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import check_folders
from check_folders import ROOT

TOKENIZER = ROOT / "datasets/samples/tokenizer"
VOCAB_SIZE = 4096
SIZES = {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2}
MAX_LENGTH = 512
# Rows a step. One pack a step makes an epoch as many steps as there are packs.
BATCH = {"NONE": 4, "BEST_FIT": 1}


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=pathlib.Path, help="JSONL")
    parser.add_argument("--count", type=int, default=64,
                        help="so many of them, from the first on")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with trl and datasets")
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    return parser.parse_args()


def made_rows(count):
    """Mostly short, every eighth long."""
    for i in range(count):
        words = 300 if i % 8 == 7 else 3 + i % 5
        yield json.dumps({"messages": [
            {"role": "user", "content": "Count to %d." % words},
            {"role": "assistant", "content": " ".join(map(str, range(words)))}]})


def write_rows(args, folder):
    """A file of rows, as many as whole steps need, and how many."""
    lines = (args.rows.read_text(encoding="utf-8").splitlines()
             if args.rows else made_rows(args.count))
    lines = [line for line in lines if line.strip()][:args.count]
    lines = lines[:len(lines) - len(lines) % BATCH["NONE"]]
    if not lines:
        sys.exit("%s has fewer than %d rows" % (args.rows, BATCH["NONE"]))
    path = pathlib.Path(folder, "rows.jsonl")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def ours(trainer, rows, packing, folder):
    """Tokens of each step, and the run's summary."""
    run = pathlib.Path(folder, "run_" + packing)
    settings = {
        "output_dir": run, "train_data.path": rows,
        "train_data.tokenizer": TOKENIZER, "train_data.packing": packing,
        "train_data.max_length": MAX_LENGTH, "launch.processes": 1,
        "batch.micro_batch_size": BATCH[packing], "train.max_epochs": 1,
        "model.vocab_size": VOCAB_SIZE,
        **{"model." + name: size for name, size in SIZES.items()}}
    command = [str(trainer), "--config=bench/sft.pbtxt"]
    for name, value in settings.items():
        command += ["--set", "%s=%s" % (name, value)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    so_far = [line["tokens"] for line in
              map(json.loads, (run / "metrics.jsonl").open()) if "loss" in line]
    return ([after - before for before, after in zip([0] + so_far, so_far)],
            json.loads((run / "summary.json").read_text()))


def theirs(python, rows, packing, steps):
    """Tokens of each step, as SFTTrainer logs num_tokens."""
    command = [str(python), str(ROOT / "bench/peers/trl_sft.py"),
               "--rows=%s" % rows, "--tokenizer=%s" % TOKENIZER,
               "--max_length=%d" % MAX_LENGTH, "--steps=%d" % steps,
               "--micro_batch_size=%d" % BATCH[packing],
               *("--%s=%d" % item for item in SIZES.items())]
    if packing == "BEST_FIT":
        command.append("--packing")
    done = subprocess.run(command, cwd=ROOT, check=True, text=True,
                          env=check_folders.peer_environment(),
                          stdout=subprocess.PIPE)
    return json.loads(done.stdout.strip().splitlines()[-1])["tokens_of_step"]


def check(args, python, rows, packing, folder):
    """Whether both count the same."""
    mine, summary = ours(args.trainer or ROOT / "bazel-bin/trainer/trainer",
                         rows, packing, folder)
    peers = theirs(python, rows, packing, len(mine))
    equal = (mine == peers if packing == "NONE" else sum(mine) == sum(peers))
    print("%s: %d tokens in %d steps (%.1f %% padding), SFTTrainer %d: %s" % (
        "padded" if packing == "NONE" else "packed", sum(mine), len(mine),
        100 * summary["padding"], sum(peers),
        "equal" if equal else "they differ"), flush=True)
    return equal


def main():
    args = parse()
    if args.trainer is None:
        check_folders.build("//trainer:all")
    python = args.python or check_folders.peer_python(
        ROOT / "bench/peers/requirements_sft.txt")
    with tempfile.TemporaryDirectory() as folder:
        rows = write_rows(args, folder)
        # Both, whatever the first one says.
        well = [check(args, python, rows, packing, folder) for packing in BATCH]
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()
