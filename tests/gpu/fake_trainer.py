#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer that writes what run.sh's parts read, at once, and by FAULT one
thing that is wrong: for rehearsal_test.sh."""
import json
import os
import sys

FAULT = os.environ.get("FAULT", "")
ON_CPU = os.environ.get("CUDA_VISIBLE_DEVICES") == ""


def loss_of(step, sets, resumed):
    """The same for all runs, unless something is planted; but SFT in bfloat16 is
    so far from float32 that only that tells how near the CPU's it must be."""
    loss = 3.0 - 0.1 * step
    if "sft" in sets["--config"] and "bf16" in sets["precision"]:
        loss *= 1.001 if ON_CPU else 0.999
    if FAULT == "correctness" and not ON_CPU and "fp16" in sets["precision"]:
        loss *= 1.05
    if FAULT == "workloads" and not ON_CPU and "llada" in sets["--config"]:
        loss *= 1.003
    if FAULT == "resume" and resumed and "sft" in sets["--config"]:
        loss *= 1.05
    if FAULT == "strategies" and "fsdp" in sets["strategy"]:
        loss *= 1.05
    if (FAULT == "graphs" and "ddp" in sets["strategy"] and
            sets.get("train.cuda_graphs") == "true"):
        loss += 1e-6
    return loss


def train(arguments):
    sets = {"precision": "", "strategy": "", "--config": "",
            "batch.micro_batch_size": "2"}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals:
            sets[name] = value
    if FAULT == "benchmark_fails" and "fp8" in sets["precision"]:
        sys.exit("ERROR: no products in 8 bits")
    if FAULT == "batches" and sets["batch.micro_batch_size"] == "4":
        sys.exit("ERROR: something else")
    if sets["batch.micro_batch_size"] == "16":
        sys.exit("ERROR: rank 0: out of memory")
    folder = sets["output_dir"]
    os.makedirs(folder + "/checkpoints", exist_ok=True)
    path = folder + "/metrics.jsonl"
    done = 0
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            done = len(file.readlines())
    with open(path, "a", encoding="utf-8") as file:
        for step in range(done + 1,
                          min(int(sets["train.max_steps"]), 100) + 1):
            slow = FAULT == "step" or (
                FAULT == "benchmarks" and "adapter.lora.rank" in sets)
            seconds = 0.5 if slow else 0.01
            file.write(json.dumps({
                "step": step, "loss": loss_of(step, sets, done > 0),
                "grad_norm": 1.0,
                "step_seconds": seconds, "tokens_per_second": 1000,
                "mfu": 0.4, "peak_bytes": 2**30, "bytes_sent": 10**9,
                "communication_seconds": 0.005, "exposed_seconds": 0.001,
            }) + "\n")
    with open(folder + "/summary.json", "w", encoding="utf-8") as file:
        json.dump({"precision": "capstan.auto (bfloat16)"}, file)
    with open(folder + "/checkpoints/weights", "w", encoding="utf-8") as file:
        file.write("large")
    off = FAULT == "memory" and "zero2" in sets["strategy"]
    print("  all tensors        planned  48.5 MiB  measured  "
          f"{'80.0' if off else '49.0'} MiB")


def main():
    if sys.argv[1] == "generate":
        print("5 9 2 14" + (" 1" if FAULT == "generate" and not ON_CPU else ""))
    elif sys.argv[1] == "eval":
        wrong = FAULT == "eval" and not ON_CPU
        print(json.dumps({"eval_loss": 1.501 if wrong else 1.5,
                          "perplexity": 4.48}))
    else:
        train(sys.argv[1:])


if __name__ == "__main__":
    main()
