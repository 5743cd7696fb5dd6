# SPDX-License-Identifier: Apache-2.0
"""Hugging Face datasets with streaming=True, as its documentation has it:
shards of Parquet, shuffled by a buffer, tokenized in batches, concatenated and
cut; PyTorch's DataLoader with workers. Prints what stream_bench prints.

    python hf_stream.py --path='data/*.parquet' --tokenizer=FOLDER
        [--rows=0] [--seconds=20] [--length=1024] [--batch=32] [--workers=2]

--rows: goes on behind so many rows (state_dict, of a run that is read up to
there first, which isn't measured).
"""

import argparse
import glob
import json
import resource
import time

import datasets
import torch
import transformers


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def stream_of(args):
    rows = datasets.load_dataset(
        "parquet", data_files=sorted(glob.glob(args.path)), split="train",
        streaming=True)
    return rows.select_columns(["text"]).shuffle(seed=1, buffer_size=10000)


def samples_of(rows, args):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=args.tokenizer + "/tokenizer.json")
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")

    def tokenize(batch):
        ids = tokenizer(batch["text"])["input_ids"]
        joined = [token for text in ids for token in text + [end]]
        whole = len(joined) // args.length * args.length
        return {"input_ids": [joined[at:at + args.length]
                              for at in range(0, whole, args.length)]}

    return rows.map(tokenize, batched=True, batch_size=1000,
                    remove_columns=["text"])


def main():
    args = parse()
    state = None
    if args.rows > 0:
        rows = stream_of(args)
        for i, _ in enumerate(rows):
            if i + 1 == args.rows:
                break
        state = rows.state_dict()
    began = time.monotonic()
    rows = stream_of(args)
    if state is not None:
        rows.load_state_dict(state)
    opened = time.monotonic()
    loader = iter(torch.utils.data.DataLoader(
        samples_of(rows, args).with_format("torch"), batch_size=args.batch,
        num_workers=args.workers))
    next(loader)
    first = time.monotonic()
    batches = 0
    while time.monotonic() - first < args.seconds:
        next(loader)
        batches += 1
    tokens = batches * args.batch * args.length / (time.monotonic() - first)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del loader
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({
        "open": round(opened - began, 3), "batch": round(first - opened, 3),
        "tokens": round(tokens), "peak": round(peak * 1024 / 1e6),
        "children": round(children * 1024 / 1e6)}))


if __name__ == "__main__":
    main()
