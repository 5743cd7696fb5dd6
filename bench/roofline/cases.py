#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks testing/roofline about the runs of docs/benchmarks.md, and writes its
table, with what an engineer reckoned by hand.

    python3 bench/roofline/cases.py [--roofline bazel-bin/testing/roofline/roofline] [--page]
"""
import argparse
import json
import os
import subprocess
import sys
import typing

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BEGIN, END = "<!-- cases.py begins -->\n", "<!-- cases.py ends -->\n"
RECOMPUTED = "train.activation_checkpointing=EVERY_UNIT"
FP8 = "precision=capstan.fp8"
TEXT = "train_data.path=//datasets/samples:libtorch_headers.txt"


def decoder(model, samples, length, *more):
    return ("bench/roofline/roofline.pbtxt",
            [f"model.config={HERE}/{model}.json",
             f"train_data.sequence_length={length}",
             f"batch.micro_batch_size={samples}", *more])


class Case(typing.NamedTuple):
    name: str
    run: tuple  # its config, and what is set
    gpus: int
    hosts: int
    by_hand: str  # tokens/s
    peers: str


CASES = [
    Case("SmolLM2-1.7B, 4 x 2048",
         decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.single"), 1, 1,
         "40 to 44 k", "LLMQ 59 k (1.5B)"),
    Case("SmolLM2-1.7B, SFT, packed, 4 x 2048",
         ("configs/sft_quickstart.pbtxt",
          ["model=capstan.decoder", f"model.config={HERE}/smollm2_1.7b.json",
           "train_data.max_length=2048", "batch.micro_batch_size=4",
           "precision=capstan.bf16", "strategy=capstan.single"]), 1, 1, "", ""),
    Case("SmolLM2-1.7B, fp8, 4 x 2048",
         decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.single", FP8), 1, 1,
         "", ""),
    Case("Llama-3.1-8B, QLoRA of rank 16, 4 x 2048, recomputed",
         decoder("llama3_8b", 4, 2048, "strategy=capstan.single", RECOMPUTED,
                 "adapter.lora.rank=16", "adapter.lora.quantize=NF4"), 1, 1,
         "8 to 13 k", "Surogate 10.2 k (LoRA), Unsloth 8.9 k"),
    Case("Llama-3.1-8B, fsdp, 1 x 4096, recomputed",
         decoder("llama3_8b", 1, 4096, "strategy=capstan.fsdp", RECOMPUTED), 8,
         1, "52 to 62 k", "torchtitan 53 k"),
    Case("Llama-3.1-8B, fsdp, fp8, 1 x 4096, recomputed",
         decoder("llama3_8b", 1, 4096, "strategy=capstan.fsdp", RECOMPUTED,
                 FP8), 8, 1, "", "torchtitan 68 k"),
    Case("Qwen3-30B-A3B, fsdp, AdamW in 8 bits, 1 x 4096, recomputed",
         decoder("qwen3_30b_a3b", 1, 4096, "strategy=capstan.fsdp", RECOMPUTED,
                 "optimizer.state=EIGHT_BIT"), 8, 1, "", ""),
    Case("LLaDA-8B, fsdp, 1 x 4096, recomputed",
         ("configs/llada_8b.pbtxt",
          ["model.pretrained=", "model.d_model=4096", "model.n_heads=32",
           "model.n_layers=32", "model.mlp_hidden_size=12288",
           "model.vocab_size=126464", TEXT]), 8, 1, "46 to 54 k", ""),
    Case("SmolLM2-1.7B, ddp, 4 x 2048",
         decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.ddp"), 32, 4, "",
         ""),
    Case("SmolLM2-1.7B, fsdp, 4 x 2048",
         decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.fsdp"), 32, 4, "",
         ""),
    Case("SmolLM2-1.7B, fsdp in groups of 8, 4 x 2048",
         decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.fsdp",
                 "strategy.shard_group_size=8"), 32, 4, "", ""),
    Case("Llama-3.1-8B, fsdp, 1 x 4096, recomputed",
         decoder("llama3_8b", 1, 4096, "strategy=capstan.fsdp", RECOMPUTED), 32,
         4, "", ""),
    Case("Llama-3.1-8B, fsdp in groups of 8, 1 x 4096, recomputed",
         decoder("llama3_8b", 1, 4096, "strategy=capstan.fsdp", RECOMPUTED,
                 "strategy.shard_group_size=8"), 32, 4, "", ""),
]


def arguments(case):
    """What roofline and the trainer are told of its run."""
    config, sets = case.run
    return [f"--config={os.path.join(ROOT, config)}"] + [
        part for one in sets for part in ("--set", one)]


def ask(roofline, case, gpu, timeout):
    """What roofline says, as JSON, or None and its error."""
    try:
        done = subprocess.run(
            [roofline, *arguments(case), "--json", f"--gpu={gpu}",
             f"--gpus={case.gpus}", f"--hosts={case.hosts}"],
            capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no answer in {timeout} s"
    if done.returncode != 0:
        return None, done.stderr.strip()
    return json.loads(done.stdout), ""


def thousands(number):
    return f"{number / 1e3:.{1 if number < 1e5 else 0}f} k"


def row(case, answer, measured=None):
    """A line of the table: its cells by their columns' names. `measured` is
    the cell of that name, if there is to be one."""
    one = answer["predictions"][0]
    step = one["step_seconds"]
    low, high = one["tokens_per_second_range"]
    fits = "" if one["fits"] else " (needs %.0f of %.0f GiB)" % (
        one["planned_bytes"] / 2**30, one["room_bytes"] / 2**30)
    return {
        "run": case.name + fits,
        one["gpu"].upper(): str(case.gpus) if case.hosts == 1 else
            f"{case.hosts} x {case.gpus // case.hosts}",
        "step": f"{1e3 * step:.0f} ms",
        "tokens/s": thousands(one["tokens_per_second"]),
        "range": f"{thousands(low)} to {thousands(high)}",
        **({} if measured is None else {"measured": measured}),
        "by hand": case.by_hand or "-",
        "peers": case.peers or "-",
        "MFU": f"{100 * one['mfu']:.0f} %",
        "exposed": f"{100 * one['exposed_communication_seconds'] / step:.0f} %",
        "GB sent": f"{answer['bytes_sent'] / 1e9:.1f}",
    }


def table(rows):
    lines = [list(rows[0])] + [list(one.values()) for one in rows]
    text = ["| " + " | ".join(cells) + " |" for cells in lines]
    return "\n".join([text[0], "|---" * len(lines[0]) + "|", *text[1:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--roofline",
                        default="bazel-bin/testing/roofline/roofline")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    rows = []
    for case in CASES:
        answer, error = ask(os.path.abspath(args.roofline), case, "h100",
                            args.timeout)
        if answer is None:
            sys.exit(f"{case.name}: {error}")
        rows.append(row(case, answer))
        print(" | ".join(rows[-1].values()), flush=True)
    if not args.page:
        return
    page = os.path.join(ROOT, "docs", "benchmarks.md")
    with open(page, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN)
    with open(page, "w", encoding="utf-8") as file:
        file.write(before + BEGIN + table(rows) + "\n" + END +
                   rest.split(END)[1])


if __name__ == "__main__":
    main()
