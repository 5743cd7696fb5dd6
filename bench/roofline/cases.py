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

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BEGIN, END = "<!-- cases.py begins -->\n", "<!-- cases.py ends -->\n"
RECOMPUTED = "train.activation_checkpointing=EVERY_UNIT"
TEXT = "train_data.path=//datasets/samples:libtorch_headers.txt"


def decoder(model, samples, length, *more):
    return ("bench/roofline/roofline.pbtxt",
            [f"model.config={HERE}/{model}.json",
             f"train_data.sequence_length={length}",
             f"batch.micro_batch_size={samples}", *more])


# Name, config and what is set, GPUs, hosts, tokens/s by hand.
CASES = [
    ("SmolLM2-1.7B, 4 x 2048",
     decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.single"), 1, 1,
     "40 to 44 k"),
    ("Llama-3.1-8B, QLoRA of rank 16, 4 x 2048, recomputed",
     decoder("llama3_8b", 4, 2048, "strategy=capstan.single", RECOMPUTED,
             "adapter.lora.rank=16", "adapter.lora.quantize=NF4"), 1, 1,
     "8 to 13 k"),
    ("Llama-3.1-8B, fsdp, 1 x 4096, recomputed",
     decoder("llama3_8b", 1, 4096, "strategy=capstan.fsdp", RECOMPUTED), 8, 1,
     "52 to 62 k"),
    ("LLaDA-8B, fsdp, 1 x 4096, recomputed",
     ("configs/llada_8b.pbtxt",
      ["model.pretrained=", "model.d_model=4096", "model.n_heads=32",
       "model.n_layers=32", "model.mlp_hidden_size=12288",
       "model.vocab_size=126464", TEXT]), 8, 1, "46 to 54 k"),
    ("SmolLM2-1.7B, ddp, 4 x 2048",
     decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.ddp"), 32, 4, ""),
    ("SmolLM2-1.7B, fsdp, 4 x 2048",
     decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.fsdp"), 32, 4, ""),
    ("SmolLM2-1.7B, fsdp in groups of 8, 4 x 2048",
     decoder("smollm2_1.7b", 4, 2048, "strategy=capstan.fsdp",
             "strategy.shard_group_size=8"), 32, 4, ""),
    ("Llama-3.1-8B, fsdp, 1 x 4096, recomputed",
     decoder("llama3_8b", 1, 4096, "strategy=capstan.fsdp", RECOMPUTED), 32, 4,
     ""),
    ("Llama-3.1-8B, fsdp in groups of 8, 1 x 4096, recomputed",
     decoder("llama3_8b", 1, 4096, "strategy=capstan.fsdp", RECOMPUTED,
             "strategy.shard_group_size=8"), 32, 4, ""),
]


def ask(roofline, case, timeout):
    _, (config, sets), gpus, hosts, _ = case
    command = [roofline, f"--config={os.path.join(ROOT, config)}", "--json",
               "--gpu=h100", f"--gpus={gpus}", f"--hosts={hosts}"]
    for one in sets:
        command += ["--set", one]
    done = subprocess.run(command, capture_output=True, text=True,
                          timeout=timeout, check=False)
    if done.returncode != 0:
        sys.exit(f"{case[0]}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def row(case, answer):
    name, _, gpus, hosts, hand = case
    one = answer["predictions"][0]
    step = one["step_seconds"]

    def thousands(number):
        return f"{number / 1e3:.{1 if number < 1e5 else 0}f} k"
    low, high = one["tokens_per_second_range"]
    fits = "" if one["fits"] else " (needs %.0f of %.0f GiB)" % (
        one["planned_bytes"] / 2**30, one["room_bytes"] / 2**30)
    return (f"| {name}{fits} | {gpus if hosts == 1 else f'{hosts} x {gpus // hosts}'} "
            f"| {1e3 * step:.0f} ms | {thousands(one['tokens_per_second'])} "
            f"| {thousands(low)} to {thousands(high)} | {hand or '-'} "
            f"| {100 * one['mfu']:.0f} % "
            f"| {100 * one['exposed_communication_seconds'] / step:.0f} % "
            f"| {answer['bytes_sent'] / 1e9:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--roofline",
                        default="bazel-bin/testing/roofline/roofline")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    lines = ["| run | H100 | step | tokens/s | range | by hand | MFU | "
             "exposed | GB sent |", "|---" * 9 + "|"]
    for case in CASES:
        lines.append(row(case, ask(os.path.abspath(args.roofline), case,
                                   args.timeout)))
        print(lines[-1], flush=True)
    if not args.page:
        return
    page = os.path.join(ROOT, "docs", "benchmarks.md")
    with open(page, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN)
    with open(page, "w", encoding="utf-8") as file:
        file.write(before + BEGIN + "\n".join(lines) + "\n" + END +
                   rest.split(END)[1])


if __name__ == "__main__":
    main()
