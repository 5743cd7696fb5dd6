# SPDX-License-Identifier: Apache-2.0
"""What fits which GPUs: a table in Markdown by `trainer plan --fit`.

  python3 tools/plan_table.py --trainer=bazel-bin/trainer/trainer \
      --model gemma3_27b_qlora=gemma/config.json --model llama3_8b_fsdp=..

A model's config.json is enough; rows are bytes of a text of ours, as long as
the config's.
"""

import argparse
import re
import subprocess
import tempfile

GPUS = (1, 2, 4, 8)
MEMORY = ("24GB", "48GB", "80GB", "141GB")


def settings(text):
    """One cell: what --fit printed, in few words."""
    words = [re.search(r"capstan\.(\w+)\.Config", text).group(1)]
    words.append("micro " + re.search(r"micro_batch_size: (\d+)", text).group(1))
    for pattern, word in (("EVERY_UNIT", "recompute"), ("EVERY_N", "recompute half"),
                          ("checkpointing: MLP", "recompute MLP"),
                          ("BFLOAT16", "bf16 state"), ("EIGHT_BIT", "8-bit state"),
                          ("optimizer_state: true", "paged state"),
                          ("activations: true", "offload inputs"),
                          ("offload_optimizer", "offload optimizer"),
                          ("cpu_offload", "offload all"), ("NF4", "NF4")):
        if pattern in text:
            words.append(word)
    return ", ".join(words)


def fit(trainer, config, model, length, gpus, memory, rows):
    command = [trainer, "plan", "--fit", f"--gpus={gpus}", f"--gpu_memory={memory}",
               f"--config={config}.pbtxt", "--set", "model.pretrained=",
               "--set", f"model.config={model}", "--set", "train_data=capstan.text",
               "--set", "train.eval_every=0",
               "--set", f"train_data.path={rows}",
               "--set", f"train_data.sequence_length={length}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode == 0:
        return settings(run.stdout.split("--config:")[1])
    missing = re.search(r"nothing fits: (\S+ \S+)", run.stderr)
    if not missing:
        raise SystemExit(run.stderr)
    return f"no: {missing.group(1)} missing"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--model", action="append", required=True,
                        help="CONFIG=config.json")
    parser.add_argument("--length", type=int, default=4096)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as rows:
        rows.write("A row of text to measure with. " * 40000)
        rows.flush()
        for pair in args.model:
            config, model = pair.split("=", 1)
            print(f"\n`{config}`, {args.length} tokens\n")
            print("| GPUs | " + " | ".join(MEMORY) + " |")
            print("|---" * (len(MEMORY) + 1) + "|")
            for gpus in GPUS:
                cells = [fit(args.trainer, config, model, args.length, gpus, memory,
                             rows.name) for memory in MEMORY]
                print(f"| {gpus} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
