# SPDX-License-Identifier: Apache-2.0
"""The same learning from rewards by TRL's GRPOTrainer, to time against.

A folder's model on prompts, --answers to each, sampled by transformers with its
cache, --rows answers a step; the reward is the number of a letter in an answer.
AdamW, clipping at 1.0, one process. Prints one JSON line: seconds of a step and
of its sampling, medians after the warm-up, and new tokens of a step.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

WARM_UP_STEPS = 1


def parse():
    parser = argparse.ArgumentParser()
    for name in ("model", "prompts"):
        parser.add_argument("--" + name, required=True)
    for name in ("answers", "rows", "micro_batch_size", "new_tokens", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    return parser.parse_args()


class Clock(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_step_begin(self, *_, **__):
        self._begin = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.steps.append(time.perf_counter() - self._begin)


def timed(function, seconds):
    def run(*args, **kwargs):
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - begin)
    return run


def main():
    args = parse()
    rows = [json.loads(line) for line in
            pathlib.Path(args.prompts).read_text().splitlines()]
    model = AutoModelForCausalLM.from_pretrained(args.model,
                                                 dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    # It wants one; with random weights hardly any text has it.
    tokenizer.eos_token = tokenizer.pad_token = (
        tokenizer.convert_ids_to_tokens(0))
    sampling, clock = [], Clock()
    model.generate = timed(model.generate, sampling)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, report_to=[],
            max_steps=args.steps, learning_rate=1e-6, logging_steps=1,
            per_device_train_batch_size=args.micro_batch_size,
            gradient_accumulation_steps=args.rows // args.micro_batch_size,
            num_generations=args.answers, temperature=1.0, beta=0.0,
            max_completion_length=args.new_tokens, save_strategy="no",
            gradient_checkpointing=False, disable_tqdm=True)
        trainer = GRPOTrainer(
            model=model, args=config, callbacks=[clock],
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: [
                float(text.count("e")) for text in completions],
            train_dataset=Dataset.from_list(
                [{"prompt": row["prompt"]} for row in rows]))
        trainer.train()
    print(json.dumps({
        "step_seconds": statistics.median(clock.steps[WARM_UP_STEPS:]),
        "rollout_seconds": statistics.median(sampling[WARM_UP_STEPS:]),
        "new_tokens": args.rows * args.new_tokens}))


if __name__ == "__main__":
    main()
