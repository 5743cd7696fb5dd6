# SPDX-License-Identifier: Apache-2.0
"""The same fine-tuning by TRL's SFTTrainer, to time against.

A Llama of random weights, or a folder's model, on conversations: the tokenizer's own chat template,
loss on all tokens, rows in the file's order, packed by best fit or padded;
AdamW, clipping at 1.0, gradients averaged by DistributedDataParallel. Run alone
or under torchrun; prints one JSON line. Tokens are those of rows: no padding.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time

START = time.time()

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import (AutoModelForCausalLM, AutoTokenizer, LlamaConfig,
                          LlamaForCausalLM, TrainerCallback)
from trl import SFTConfig, SFTTrainer

# Steps at the start that the figures leave out, as in Capstan's summary.
WARM_UP_STEPS = 2


SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads", "num_key_value_heads")


def parse():
    parser = argparse.ArgumentParser()
    for name in ("max_length", "micro_batch_size", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--model", help="a folder; else a Llama of all sizes")
    for name in SIZES:
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--rows", required=True, help="JSONL of conversations")
    parser.add_argument("--tokenizer", required=True, help="a folder")
    parser.add_argument("--packing", action="store_true")
    args = parser.parse_args()
    if not args.model and None in [getattr(args, name) for name in SIZES]:
        parser.error("--model or each of --%s is needed" % ", --".join(SIZES))
    return args


def messages(row):
    """A row of {"messages"} or {"question", "answer"} as a conversation."""
    if "messages" in row:
        return row["messages"]
    return [{"role": "user", "content": row["question"]},
            {"role": "assistant", "content": row["answer"]}]


def build(args, tokenizer):
    if args.model:
        return AutoModelForCausalLM.from_pretrained(args.model,
                                                    dtype=torch.float32)
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_hidden_layers=args.num_hidden_layers,
        num_attention_heads=args.num_attention_heads,
        num_key_value_heads=args.num_key_value_heads,
        vocab_size=len(tokenizer),
        max_position_embeddings=8192,
        rope_theta=100000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True))


class Clock(TrainerCallback):
    """Seconds and tokens of each step, over all ranks."""

    def __init__(self):
        self.ready, self.losses = None, []
        self.seconds, self.tokens_so_far = [], []
        self._begin = None

    def on_train_begin(self, *_, **__):
        self.ready = time.time() - START

    def on_step_begin(self, *_, **__):
        self._begin = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.perf_counter() - self._begin)

    def on_log(self, args, state, control, logs=None, **__):
        if "loss" in (logs or {}):
            self.losses.append(logs["loss"])
            self.tokens_so_far.append(logs["num_tokens"])

    def tokens(self):
        """Of each step."""
        return [after - before for before, after in
                zip([0] + self.tokens_so_far, self.tokens_so_far)]


def peak_memory():
    """Bytes of the fullest rank's process."""
    most = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    if dist.is_initialized():
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.item() * 1024


def main():
    args = parse()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    with open(args.rows, encoding="utf-8") as file:
        data = Dataset.from_list(
            [{"messages": messages(json.loads(line))} for line in file])
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=build(args, tokenizer),
            args=SFTConfig(
                output_dir=folder, max_steps=args.steps,
                per_device_train_batch_size=args.micro_batch_size,
                max_length=args.max_length, packing=args.packing,
                train_sampling_strategy="sequential", learning_rate=1e-3,
                logging_steps=1, save_strategy="no", report_to=[], bf16=False,
                use_cpu=True, ddp_find_unused_parameters=False,
                gradient_checkpointing=False, disable_tqdm=True),
            train_dataset=data, processing_class=tokenizer, callbacks=[clock])
        trainer.train()
        peak = peak_memory()
    if int(os.environ.get("RANK", "0")) == 0:
        seconds = clock.seconds[WARM_UP_STEPS:]
        print(json.dumps({
            "tokens_per_second":
                sum(clock.tokens()[WARM_UP_STEPS:]) / sum(seconds),
            "step_seconds_median": statistics.median(seconds),
            "tokens_of_step": clock.tokens(),
            "ready_seconds": clock.ready,
            "peak_memory_bytes": peak,
            "final_loss": clock.losses[-1],
            "losses": clock.losses,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
        }))
    if dist.is_initialized():
        dist.barrier()
    # Leaving the interpreter in the usual way hangs now and then.
    sys.stdout.flush()
    os._exit(0)


main()
