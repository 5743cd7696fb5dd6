#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Long rows on ranks that divide them, beside one rank.

    ./bazelw build //trainer:all
    bench/long_context.py [--lengths=4096,16384,65536] [--ranks=4] [--steps=2]

A small Llama of SmolLM2-135M's ratio of heads (three to one of keys, of which no
two ranks have a part each) trains rows of each length: by itself with all cores,
and with train.sequence_parallel on ranks that share the cores. Prints a table in
Markdown: tokens a second of the last step, and a rank's tensors at its peak,
planned and measured.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import contestants
import report

LIMIT_SECONDS = 3600
CONFIG = """
model {{ [plugin/capstan.llama.Config] {{
  hidden_size: 192 intermediate_size: 512 num_hidden_layers: {layers}
  num_attention_heads: 3 num_key_value_heads: 1 vocab_size: 256
  max_position_embeddings: {length} }} }}
objective {{ [plugin/capstan.causal_lm.Config] {{}} }}
train_data {{ [plugin/capstan.text.Config] {{
  path: "{text}" sequence_length: {length} }} }}
strategy {{ [plugin/capstan.fsdp.Config] {{}} }}
precision {{ [plugin/capstan.fp32.Config] {{}} }}
optimizer {{ [plugin/capstan.adamw.Config] {{ learning_rate: 1e-3 }} }}
batch {{ micro_batch_size: 1 global_batch_size: 1 }}
train {{ max_steps: {steps} sequence_parallel: {ranks} log_every: 1
  activation_checkpointing: EVERY_UNIT }}
launch {{ processes: {ranks} }}
output_dir: "{folder}"
"""


def run(folder, length, ranks, args):
    config = folder / f"{length}_{ranks}.pbtxt"
    out = folder / f"out_{length}_{ranks}"
    config.write_text(CONFIG.format(
        layers=args.layers, length=length, text=contestants.TEXT,
        steps=args.steps, ranks=ranks, folder=out), encoding="utf-8")
    subprocess.run([contestants.TRAINER, f"--config={config}"], check=True,
                   stdout=subprocess.DEVNULL, timeout=LIMIT_SECONDS)
    with open(out / "metrics.jsonl", encoding="utf-8") as file:
        steps = [line for line in map(json.loads, file) if "tokens_per_second" in line]
    memory = json.loads((out / "summary.json").read_text())["memory"]["total"]
    return steps[-1]["loss"], steps[-1]["tokens_per_second"], memory


def mebibytes(count):
    return f"{count / 2**20:,.0f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="4096,16384,65536")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for length in map(int, args.lengths.split(",")):
            one_loss, one_speed, one = run(folder, length, 1, args)
            loss, speed, memory = run(folder, length, args.ranks, args)
            apart = abs(loss - one_loss) / one_loss
            lines.append([
                f"{length:,}", f"{one_speed:,.0f}", f"{speed:,.0f}",
                f"{speed / one_speed:.2f}", mebibytes(one["measured"]),
                mebibytes(memory["measured"]), mebibytes(memory["predicted"]),
                f"{memory['measured'] / one['measured']:.2f}", f"{apart:.0e}"])
            print(lines[-1], file=sys.stderr, flush=True)
    print(f"{os.cpu_count()} cores, {args.ranks} ranks beside one")
    print(report.markdown_table(
        ["positions", "tokens/s, one", f"{args.ranks} ranks", "ratio",
         "MiB, one", "MiB a rank", "planned", "ratio", "losses apart"], lines))


if __name__ == "__main__":
    main()
