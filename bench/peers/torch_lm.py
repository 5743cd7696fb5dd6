# SPDX-License-Identifier: Apache-2.0
"""The same training in PyTorch and Hugging Face transformers, to time against.

A Llama-shaped causal language model on the bytes of a file: AdamW (fused),
clipping at 1.0; gradients averaged by DistributedDataParallel (ddp), with
ZeroRedundancyOptimizer on top (zero1), or parameters sharded by FSDP2's
fully_shard, a layer at a time (fsdp2). Run alone or under torchrun; prints one
JSON line. Its data order is Capstan's sequential
one: step s, rank r takes the micro-batch of sequences that starts at
s * global_batch + r * micro_batch.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

START = time.time()

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM


def parse():
    parser = argparse.ArgumentParser()
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers",
                 "num_attention_heads", "num_key_value_heads", "vocab_size",
                 "sequence_length", "micro_batch_size", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--strategy", default="ddp",
                        choices=("ddp", "zero1", "fsdp2"))
    return parser.parse_args()


def build(args):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_hidden_layers=args.num_hidden_layers,
        num_attention_heads=args.num_attention_heads,
        num_key_value_heads=args.num_key_value_heads,
        vocab_size=args.vocab_size,
        max_position_embeddings=8192,
        rope_theta=100000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True))


def distribute(model, strategy, world):
    """The model as that strategy trains it."""
    if strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (world,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    return torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True)


def make_optimizer(model, strategy):
    options = dict(lr=1e-3, weight_decay=0.01)
    if strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW,
            parameters_as_bucket_view=True, **options)
    return torch.optim.AdamW(model.parameters(), fused=True, **options)


def main():
    args = parse()
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model = build(args)
    if world > 1:
        dist.init_process_group("gloo")
        model = distribute(model, args.strategy, world)
    optimizer = make_optimizer(model, args.strategy)
    with open(args.text, "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    windows = data.numel() // args.sequence_length

    def batch(step):
        first = (step * world + rank) * args.micro_batch_size
        rows = [(first + i) % windows for i in range(args.micro_batch_size)]
        n = args.sequence_length
        return torch.stack([data[i * n:(i + 1) * n] for i in rows]).long()

    ready = time.time() - START
    seconds, losses = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        ids = batch(step)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = loss.detach()
        if world > 1:
            dist.all_reduce(total)
            total /= world
        losses.append(total.item())
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[2:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if rank == 0:
        tokens = args.micro_batch_size * args.sequence_length * world
        print(json.dumps({
            "tokens_per_second": tokens / median,
            "step_seconds_median": median,
            "ready_seconds": ready,
            "peak_memory_bytes": peak,
            "final_loss": losses[-1],
        }))
    if world > 1:
        dist.barrier()
    # Leaving the interpreter in the usual way hangs now and then.
    sys.stdout.flush()
    os._exit(0)


main()
