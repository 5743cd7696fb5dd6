#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what a step of small runs asks of a GPU: launches, bytes and FLOPs a
token, bytes sent, waits of the host and allocations, on stand-in devices.

    python3 bench/roofline/gate.py ROOFLINE [--renew]

expected.json has the numbers. More than TOLERANCE above one of them is an error;
so is as much below, which calls for --renew, as does any change on purpose.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SMALL = os.path.join(HERE, "small.pbtxt")
EXPECTED = os.path.join(HERE, "expected.json")
TOLERANCE = 0.02
# Of these any more is an error.
EXACT = ("waits", "allocations")
BF16 = "precision=capstan.bf16"


def quickstart(name):
    return os.path.join(ROOT, "configs", name + "_quickstart.pbtxt")


# Config, strategy, GPUs, and fields that differ from the config's.
RUNS = {
    "ddp, 1 GPU": (SMALL, "ddp", 1, []),
    "zero2, 4 GPUs": (SMALL, "zero2", 4, []),
    "fsdp, 4 GPUs": (SMALL, "fsdp", 4, []),
    "units recomputed": (SMALL, "single", 1, [
        "train.activation_checkpointing=EVERY_UNIT"]),
    "MLP recomputed": (SMALL, "single", 1, [
        "train.activation_checkpointing=MLP"]),
    "in 8 bits": (SMALL, "single", 1, ["precision=capstan.fp8"]),
    "QLoRA": (SMALL, "single", 1, [
        "adapter.lora.rank=16", "adapter.lora.quantize=NF4"]),
    "SFT, packed": (quickstart("sft"), "single", 1, [
        BF16, "batch.micro_batch_size=4"]),
    "LLaDA": (quickstart("llada"), "single", 1, [BF16]),
    "AD": (quickstart("ad_darkroom"), "single", 1, [
        BF16, "collect.streams=5", "collect.steps=1000",
        "train_data.steps=200"]),
    # A step of one micro-step.
    "Qwen3-30B-A3B, fsdp, 8 GPUs": (SMALL, "fsdp", 8, [
        "model.config=" + os.path.join(HERE, "qwen3_30b_a3b.json"),
        "train_data.sequence_length=4096", "batch.micro_batch_size=1",
        "train.activation_checkpointing=EVERY_UNIT"]),
}
MOST_LAUNCHES = {"Qwen3-30B-A3B, fsdp, 8 GPUs": 5000}


def output_of(name, command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    if done.returncode != 0:
        sys.exit(f"{name}: {os.path.basename(command[0])} fails:\n{done.stderr}")
    return done.stdout


def measure(roofline, name, folder):
    """`folder`: for the data that a run has to make."""
    config, strategy, gpus, fields = RUNS[name]
    sets = ["--config=" + config]
    for field in [f"strategy=capstan.{strategy}", *fields]:
        sets += ["--set", field]
    if any(field.startswith("collect.") for field in fields):
        sets += ["--set", f"train_data.path={folder}/collected.hdf5"]
        trainer = os.path.join(os.path.dirname(roofline),
                               "../../trainer/trainer")
        output_of(name, [trainer, "collect", *sets])
    answer = json.loads(output_of(
        name, [roofline, "--json", "--gpu=h100", f"--gpus={gpus}", *sets]))
    tokens = answer["tokens_per_rank"]
    most = MOST_LAUNCHES.get(name)
    if most is not None and answer["launches"] >= most:
        sys.exit(f"{name}: {answer['launches']} launches, not below {most}")
    return {
        "launches_per_1000_tokens": 1000 * answer["launches"] / tokens,
        "bytes_per_token": answer["bytes"] / tokens,
        "flops_per_token": answer["flops"] / tokens,
        "bytes_sent_per_token": answer["bytes_sent"] / tokens,
        "waits": answer["waits"],
        "allocations": answer["allocations"],
    }


def problems(name, expected, measured):
    """Lines about numbers that aren't what they should be."""
    lines = []
    for what, number in measured.items():
        before = expected.get(what)
        if before is None:
            lines.append(f"{name}: {what} isn't in expected.json")
        elif what in EXACT:
            if number != before:
                lines.append(f"{name}: {what} {number}, expected {before}")
        elif abs(number - before) > TOLERANCE * before:
            lines.append(f"{name}: {what} {number:.6g}, expected {before:.6g} "
                         f"({100 * (number / before - 1) if before else 100:+.1f} %)")
    return lines


def main():
    roofline = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        measured = {name: measure(roofline, name, folder) for name in RUNS}
    if "--renew" in sys.argv[2:]:
        with open(EXPECTED, "w", encoding="utf-8") as file:
            json.dump(measured, file, indent=1)
            file.write("\n")
        return
    with open(EXPECTED, encoding="utf-8") as file:
        expected = json.load(file)
    lines = []
    for name, numbers in measured.items():
        print(name, numbers)
        lines += problems(name, expected.get(name, {}), numbers)
    if lines:
        sys.exit("\n".join(lines) + "\nIf it is meant: python3 "
                 "bench/roofline/gate.py "
                 "bazel-bin/testing/roofline/roofline --renew")


if __name__ == "__main__":
    main()
