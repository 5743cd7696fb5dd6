#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks testing/roofline about models, strategies and GPUs; writes
docs/roofline.md's table and picture.

    python3 bench/roofline/table.py [--roofline bazel-bin/testing/roofline/roofline] \
        [--results results.json] [--runs smollm2_135m,llama3_8b] [--page]

--results keeps what was asked, and what is there isn't asked again. --page
writes the part of docs/roofline.md between its markers, and docs/roofline.svg.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CONFIG = os.path.join(HERE, "roofline.pbtxt")
GPUS = ["a100", "h100", "h200", "b200"]
STRATEGIES = {1: ["single"], 8: ["ddp", "zero2", "fsdp"]}
FSDP = {8: ["fsdp"]}
FP8 = ", fp8"
RECOMPUTED, MLP = ", recomputed", ", MLP recomputed"
SETS = {"": [], FP8: ["precision=capstan.fp8"],
        RECOMPUTED: ["train.activation_checkpointing=EVERY_UNIT"],
        MLP: ["train.activation_checkpointing=MLP"]}

# Model, its name, micro-batch x tokens, what is set, strategies by GPUs.
RUNS = {
    "smollm2_135m": ("smollm2_135m", "SmolLM2-135M", 8, 2048, "", STRATEGIES),
    "smollm2_1.7b": ("smollm2_1.7b", "SmolLM2-1.7B", 4, 2048, "", STRATEGIES),
    "smollm2_1.7b_fp8": ("smollm2_1.7b", "SmolLM2-1.7B", 4, 2048, FP8, STRATEGIES),
    "llama3_8b": ("llama3_8b", "Llama-3.1-8B", 1, 4096, RECOMPUTED, STRATEGIES),
    "llama3_8b_mlp": ("llama3_8b", "Llama-3.1-8B", 1, 4096, MLP, FSDP),
    "llama3_8b_2k": ("llama3_8b", "Llama-3.1-8B", 2, 2048, RECOMPUTED, FSDP),
    "llama3_8b_8k": ("llama3_8b", "Llama-3.1-8B", 1, 8192, RECOMPUTED, FSDP),
    "llama3_8b_32k": ("llama3_8b", "Llama-3.1-8B", 1, 32768, RECOMPUTED, FSDP),
    "gemma3_27b": ("gemma3_27b", "Gemma-3-27B", 1, 4096, RECOMPUTED, STRATEGIES),
}
BEGIN, END = "<!-- table.py begins -->\n", "<!-- table.py ends -->\n"


def ask(roofline, run, strategy, gpus, timeout):
    """What roofline says, as JSON; None if it fails, which it says."""
    model, _, samples, length, what, _ = RUNS[run]
    sets = [f"model.config={HERE}/{model}.json",
            f"train_data.sequence_length={length}",
            f"batch.micro_batch_size={samples}",
            f"strategy=capstan.{strategy}", *SETS[what]]
    able = [gpu for gpu in GPUS if what != FP8 or gpu != "a100"]
    command = [roofline, f"--config={CONFIG}", "--json",
               f"--gpus={gpus}", "--gpu=" + ",".join(able)]
    for one in sets:
        command += ["--set", one]
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              timeout=timeout, check=True)
    except subprocess.TimeoutExpired:
        print(f"{run} {strategy} {gpus}: no answer in {timeout} s",
              file=sys.stderr)
        return None
    except subprocess.CalledProcessError as error:
        print(f"{run} {strategy} {gpus}: {error.stderr.strip()}",
              file=sys.stderr)
        return None
    return json.loads(done.stdout)


def asked(run):
    """Its strategies, and on how many GPUs."""
    return [(strategy, gpus) for gpus, strategies in RUNS[run][-1].items()
            for strategy in strategies]


def short(number):
    """1234567 as 1.23 M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def predictions(answer):
    return {prediction["gpu"]: prediction for prediction in answer["predictions"]}


def cell(answer, gpu):
    prediction = predictions(answer).get(gpu)
    if prediction is None:
        return "-"
    if not prediction["fits"]:
        return (f"needs {answer['planned_bytes'] / 2**30:.0f} of "
                f"{prediction['room_bytes'] / 2**30:.0f} GiB")
    return (f"{prediction['step_seconds'] * 1e3:.0f} ms, "
            f"{short(prediction['tokens_per_second'])}/s, "
            f"{100 * prediction['mfu']:.0f} %")


def table(results):
    lines = ["| model | GPUs | strategy | " + " | ".join(
        gpu.upper() for gpu in GPUS) +
        " | launches | bytes a token | waits | GB sent |",
        "|---" * (7 + len(GPUS)) + "|"]
    for run, (_, name, samples, length, what, _) in RUNS.items():
        for strategy, gpus in asked(run):
            answer = results.get(f"{run} {strategy} {gpus}")
            if answer is None:
                continue
            cells = [cell(answer, gpu) for gpu in GPUS]
            lines.append(
                f"| {name}, {samples} x {length}{what} | {gpus} | "
                f"{strategy} | " + " | ".join(cells) +
                f" | {answer['launches']:,} | "
                f"{short(answer['bytes'] / answer['tokens_per_rank'])} | "
                f"{answer['waits']} | {answer['bytes_sent'] / 1e9:.2f} |")
    return "\n".join(lines) + "\n"


COLOURS = {"a100": "#9aa5b1", "h100": "#3e7cb1", "h200": "#2a9d8f",
           "b200": "#e07a5f"}


def picture(results):
    """Bars: predicted MFU on 8 GPUs, by model and strategy; none where the
    model doesn't fit."""
    groups = [(run, strategy) for run in RUNS if RUNS[run][-1] is STRATEGIES
              for strategy in STRATEGIES[8] if f"{run} {strategy} 8" in results]
    width, height, left, top = 1000, 360, 60, 50
    plot = height - top - 70
    step = (width - left - 20) / max(1, len(groups))
    bar = step * 0.8 / len(GPUS)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
           f'height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="20" font-size="15">Predicted model FLOPs '
           "utilisation on 8 GPUs, bfloat16 or fp8 (an estimate, never compared "
           "with a card)</text>"]
    for percent in range(0, 81, 20):
        y = top + plot * (1 - percent / 80)
        svg.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" '
                   f'y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y + 4:.1f}" '
                   f'text-anchor="end">{percent} %</text>')
    for i, gpu in enumerate(GPUS):
        x = left + i * 80
        svg.append(f'<rect x="{x}" y="30" width="12" height="12" '
                   f'fill="{COLOURS[gpu]}"/><text x="{x + 17}" y="41">'
                   f"{gpu.upper()}</text>")
    for g, (run, strategy) in enumerate(groups):
        x = left + g * step + step * 0.1
        answer = results[f"{run} {strategy} 8"]
        for i, gpu in enumerate(GPUS):
            prediction = predictions(answer).get(gpu)
            if prediction is None:
                continue
            if not prediction["fits"]:
                svg.append(f'<text x="{x + (i + 0.5) * bar:.1f}" '
                           f'y="{top + plot - 4}" text-anchor="middle" '
                           'fill="#999">×</text>')
                continue
            tall = plot * min(1, prediction["mfu"] / 0.8)
            svg.append(f'<rect x="{x + i * bar:.1f}" '
                       f'y="{top + plot - tall:.1f}" width="{bar * 0.9:.1f}" '
                       f'height="{tall:.1f}" fill="{COLOURS[gpu]}"'
                       "/>")
        middle = x + step * 0.4
        svg.append(f'<text x="{middle:.1f}" y="{top + plot + 18}" '
                   f'text-anchor="middle">{strategy}</text>')
        if strategy == STRATEGIES[8][1]:
            svg.append(f'<text x="{middle:.1f}" y="{top + plot + 38}" '
                       f'text-anchor="middle">{RUNS[run][1]}{RUNS[run][4]}</text>')
    svg.append(f'<text x="{left}" y="{height - 10}" fill="#666">× : doesn\'t '
               "fit the GPU's memory, by trainer plan</text></svg>")
    return "\n".join(svg) + "\n"


def write_page(results):
    page = os.path.join(ROOT, "docs", "roofline.md")
    with open(page, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    with open(page, "w", encoding="utf-8") as file:
        file.write(before + BEGIN + table(results) + END + after)
    with open(os.path.join(ROOT, "docs", "roofline.svg"), "w",
              encoding="utf-8") as file:
        file.write(picture(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--roofline",
                        default="bazel-bin/testing/roofline/roofline")
    parser.add_argument("--results", default="")
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    results = {}
    if args.results and os.path.exists(args.results):
        with open(args.results, encoding="utf-8") as file:
            results = json.load(file)
    for run in args.runs.split(","):
        for strategy, gpus in asked(run):
            key = f"{run} {strategy} {gpus}"
            if key in results:
                continue
            answer = ask(args.roofline, run, strategy, gpus, args.timeout)
            if answer is None:
                continue
            results[key] = answer
            if args.results:
                with open(args.results, "w", encoding="utf-8") as file:
                    json.dump(results, file, indent=1)
    print(table(results))
    if args.page:
        write_page(results)


if __name__ == "__main__":
    main()
