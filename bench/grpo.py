#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Learning from rewards beside TRL's GRPOTrainer, in turn, in one run.

    python3 bench/grpo.py [--repeats 3] [--new_tokens 64] [--deterministic]

One rank of one thread on a CPU, float32: a model of SmolLM2-135M's shape with
random weights, in which no token ends a text; 8 answers of --new_tokens tokens
to each of two prompts of 32 words a step, trained on 8 at a time; TRL samples
by transformers with its cache. --deterministic adds our run with
train.deterministic, in which sampled and trained log-probabilities have the
same bits.

Prints seconds of a step and new tokens a second of sampling, medians, and the
ratios of the same round, lowest and highest. TRL is installed in bench/.venv at
need.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import compare
import comparison
import contestants
import generate
import processes
import report
import serve

ANSWERS, ROWS, MICRO_BATCH_SIZE, STEPS = 8, 16, 8, 4
WARM_UP_STEPS = 1  # as peers/trl_grpo.py
PROMPTS, PROMPT_WORDS = 32, 32
REQUIREMENTS = contestants.BENCH / "peers/requirements_sft.txt"
PACKAGES = ("torch", "transformers", "trl")
OURS, EXACT, PEER = "capstan", "capstan, deterministic", "TRL"
CONFIG = """
model { [plugin/capstan.decoder.Config] { pretrained: "%(model)s" } }
objective { [plugin/capstan.grpo.Config] {
  reward { regex { pattern: "e" } } num_generations: %(answers)d
  max_new_tokens: %(new_tokens)d } }
train_data { [plugin/capstan.chat.Config] {
  path: "%(prompts)s" kind: PROMPT max_length: 256 } }
optimizer { [plugin/capstan.adamw.Config] { learning_rate: 1e-6 } }
precision { [plugin/capstan.fp32.Config] {} }
batch { micro_batch_size: %(micro)d global_batch_size: %(rows)d }
train { max_steps: %(steps)d deterministic: %(exact)s }
launch { processes: 1 }
output_dir: "%(output)s"
"""


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--new_tokens", type=int, default=64)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with %s instead of bench/.venv" %
                        ", ".join(PACKAGES))
    return parser.parse_args()


def environment():
    return dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
                TOKENIZERS_PARALLELISM="false")


def ours(trainer, args, folder, exact):
    output = tempfile.mkdtemp(dir=folder)
    config = pathlib.Path(output, "grpo.pbtxt")
    config.write_text(CONFIG % {
        "model": folder / "model", "prompts": folder / "prompts.jsonl",
        "answers": ANSWERS, "new_tokens": args.new_tokens, "rows": ROWS,
        "micro": MICRO_BATCH_SIZE, "steps": STEPS, "output": output + "/run",
        "exact": str(exact).lower()})
    processes.run(["taskset", "-c", "0", str(trainer), "--config=%s" % config],
                  contestants.ROOT, environment(),
                  contestants.RUN_LIMIT_SECONDS)
    steps = [json.loads(line) for line in pathlib.Path(
        output, "run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in steps if "loss" in line][WARM_UP_STEPS:]
    ranks = [json.loads(line) for line in pathlib.Path(
        output, "run/ranks/rank-00000.jsonl").read_text().splitlines()]
    rollouts = [line["rollout"] / line["steps"] for line in ranks
                if "rollout" in line]
    return {"step_seconds": statistics.median(s["step_seconds"] for s in steps),
            "rollout_seconds": statistics.median(rollouts[WARM_UP_STEPS:])}


def peers(python, args, folder):
    printed = processes.run(
        ["taskset", "-c", "0", str(python),
         str(contestants.BENCH / "peers/trl_grpo.py"),
         "--model=%s" % (folder / "model"),
         "--prompts=%s" % (folder / "prompts.jsonl"),
         "--answers=%d" % ANSWERS, "--rows=%d" % ROWS,
         "--micro_batch_size=%d" % MICRO_BATCH_SIZE,
         "--new_tokens=%d" % args.new_tokens, "--steps=%d" % STEPS],
        contestants.ROOT, environment(), contestants.RUN_LIMIT_SECONDS)
    return json.loads(printed.strip().splitlines()[-1])


def prompts(folder):
    words = serve.WORDS
    rows = [" ".join([str(i)] + [words[(i + j) % len(words)]
                                 for j in range(PROMPT_WORDS)])
            for i in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": row}) + "\n" for row in rows))


def table(found, args):
    lines = []
    for side, rounds in found.items():
        line = [side]
        for key in ("step_seconds", "rollout_seconds"):
            mine = dict(enumerate(r[key] for r in rounds))
            ratio = comparison.ratios(
                dict(enumerate(r[key] for r in found[PEER])), mine)
            value = statistics.median(mine.values())
            if key == "rollout_seconds":
                value = ROWS * args.new_tokens / value
            line += ["%.3g" % value, report.ratio(ratio)]
        lines.append(line)
    return report.markdown_table(
        ["side", "step, s", "TRL's / it", "sampled tokens/s", "ratio"], lines)


def main():
    args = parse()
    if args.trainer is None:
        contestants.ensure_trainer()
    trainer = (args.trainer or contestants.TRAINER).resolve()
    python = args.python or contestants.ensure_peer(REQUIREMENTS, PACKAGES)
    sides = {OURS: lambda folder: ours(trainer, args, folder, False),
             PEER: lambda folder: peers(python, args, folder)}
    if args.deterministic:
        sides[EXACT] = lambda folder: ours(trainer, args, folder, True)
    found = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="capstan_bench_") as made:
        folder = pathlib.Path(made)
        serve.without_end(generate.make_model(python, folder / "model",
                                              "float32"))
        prompts(folder)
        for round_ in range(args.repeats):
            for side in comparison.in_turn(list(sides), round_):
                found[side].append(sides[side](folder))
                print(side, json.dumps(found[side][-1]), file=sys.stderr)
    print("commit %s, %d rounds, load %.1f\n\n%s" % (
        compare.commit(), args.repeats, os.getloadavg()[0],
        table(found, args)), end="")


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
