#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How soon a folder's model trains: from exec to the end of the first step.

    python3 bench/start.py [--repeats 3] [--lora]

A model of SmolLM2-135M's shape with random weights, in float32 and in bfloat16
on the disk (or --model FOLDER); one rank of one thread, fp32, beside
transformers' from_pretrained in a plain loop (peers/torch_lm.py); with --lora
by adapters on a base in bfloat16, beside peft. The file is in the page cache,
or dropped from it before. A round runs ours and PyTorch on all of these, every
other round in reverse order. Prints a table of medians, lowest and highest.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile

import checkpoint
import comparison
import contestants
import generate
import processes
import report

SEQUENCE_LENGTH = 256
LIMIT_SECONDS = 300
FIGURES = {"ready s": 1.0, "first step s": 1.0, "peak MB": 1e-6}


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--model", type=pathlib.Path,
                        help="a Hugging Face folder of a Llama")
    parser.add_argument("--no_peer", dest="peer", action="store_false")
    parser.add_argument("--trainer", type=pathlib.Path, action="append",
                        help="instead of building it; each of several runs")
    parser.add_argument("--text", type=pathlib.Path, default=contestants.TEXT)
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with torch, transformers and peft "
                        "instead of bench/.venv")
    return parser.parse_args()


def environment():
    return dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
                TOKENIZERS_PARALLELISM="false")


def ours(trainer, args, model):
    with tempfile.TemporaryDirectory(prefix="capstan_bench_") as folder:
        run = pathlib.Path(folder, "run")
        settings = {"output_dir": run, "train_data.path": args.text.resolve(),
                    "train_data.sequence_length": SEQUENCE_LENGTH,
                    "batch.micro_batch_size": 1, "train.max_steps": 1,
                    "launch.processes": 1, "strategy": "capstan.single",
                    "model": "capstan.decoder", "model.pretrained": model}
        if args.lora:
            settings.update({"precision": "capstan.bf16",
                             "adapter.lora.rank": contestants.LORA_RANK,
                             "adapter.lora.alpha": contestants.LORA_RANK})
        command = [str(trainer), "--config=bench/lm.pbtxt"]
        for name, value in settings.items():
            command += ["--set", "%s=%s" % (name, value)]
        processes.run(command, contestants.ROOT, environment(), LIMIT_SECONDS)
        summary = json.loads((run / "summary.json").read_text())
        first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    return {"ready s": summary["ready_seconds"],
            "first step s": first["step_seconds"],
            "peak MB": max(summary["peak_memory_bytes"])}


def theirs(python, args, model):
    sizes = contestants.SHAPES["smollm2-135m"]._asdict()
    command = [str(python), str(contestants.BENCH / "peers/torch_lm.py"),
               "--model=%s" % model, "--strategy=single", "--steps=1",
               "--sequence_length=%d" % SEQUENCE_LENGTH,
               "--micro_batch_size=1", "--text=%s" % args.text.resolve(),
               *("--%s=%d" % item for item in sizes.items())]
    if args.lora:
        command += ["--lora_rank=%d" % contestants.LORA_RANK,
                    "--precision=bf16"]
    output = processes.run(command, contestants.ROOT, environment(),
                           LIMIT_SECONDS)
    figures = json.loads(output.strip().splitlines()[-1])
    return {"ready s": figures["ready_seconds"],
            "first step s": figures["step_seconds_median"],
            "peak MB": figures["peak_memory_bytes"]}


def table(measurements):
    """As Markdown; measurements: [(folder, cache, side, figures)]."""
    runs = {}
    for folder, cache, side, figures in measurements:
        runs.setdefault((folder, cache, side), []).append(figures)
    lines = []
    for key, of in runs.items():
        line = list(key)
        for name, scale in FIGURES.items():
            spread = comparison.spread([f[name] * scale for f in of])
            line.append("%.4g (%.4g..%.4g)" % (
                spread["median"], spread["lowest"], spread["highest"]))
        lines.append(line)
    return report.markdown_table(["folder", "file", "", *FIGURES], lines)


def main():
    args = parse()
    # So that what runs is ended first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.trainer is None:
        contestants.ensure_trainer()
    trainers = [t.absolute() for t in args.trainer or [contestants.TRAINER]]
    python = args.python or contestants.ensure_peer(
        packages=contestants.LORA_PACKAGES if args.lora
        else contestants.PACKAGES)
    sides = {"capstan" if len(trainers) == 1 else str(t): t for t in trainers}
    measurements = []
    with tempfile.TemporaryDirectory(prefix="capstan_bench_") as made:
        folders = {args.model.name: args.model.resolve()} if args.model else {
            dtype: generate.make_model(python, pathlib.Path(made, dtype), dtype)
            for dtype in ("float32", "bfloat16")
            if dtype == "bfloat16" or not args.lora}
        cells = [(folder, cache, side) for folder in folders
                 for cache in ("in the page cache", "dropped")
                 for side in [*sides, *(["PyTorch"] if args.peer else [])]]
        for round_ in range(args.repeats):
            for folder, cache, side in comparison.in_turn(cells, round_):
                if cache == "dropped":
                    checkpoint.drop_from_cache(folders[folder])
                else:
                    for file in folders[folder].glob("*.safetensors"):
                        file.read_bytes()
                figures = (theirs(python, args, folders[folder])
                           if side == "PyTorch" else
                           ours(sides[side], args, folders[folder]))
                measurements.append((folder, cache, side, figures))
                print(*measurements[-1], file=sys.stderr, flush=True)
    order = {cell: i for i, cell in enumerate(cells)}
    measurements.sort(key=lambda m: order[m[:3]])
    print(table(measurements), end="")


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
