# SPDX-License-Identifier: Apache-2.0
"""The same training in PyTorch and Hugging Face transformers, to time against.

A Llama-shaped causal language model on the bytes of a file: AdamW (fused),
clipping at 1.0; on one device (single), gradients averaged by
DistributedDataParallel (ddp), with ZeroRedundancyOptimizer on top (zero1), or
parameters sharded by FSDP2's fully_shard, a layer at a time (fsdp2). bf16 is
autocast over parameters in fp32. With --lora_rank peft's adapters on all linear
layers but the head are trained, and nothing else; with --masked_diffusion the
Llama sees both sides and is trained as a LLaDA on the file's characters. Run
alone or under torchrun; prints one JSON line. Its data order is Capstan's
sequential one: step s, rank r takes the micro-batch of sequences that starts at
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
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

# Steps at the start that the medians leave out, as in Capstan's summary. With
# --compile the compiler runs in the first.
WARM_UP_STEPS = 2
# Of masked diffusion, as in plugins/llada/masked_diffusion: the smallest
# probability of a mask, and the id of the first character.
EPS = 1e-3
FIRST_CHARACTER = 3


def parse():
    parser = argparse.ArgumentParser()
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers",
                 "num_attention_heads", "num_key_value_heads", "vocab_size",
                 "sequence_length", "micro_batch_size", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--model", help="a folder, instead of random weights")
    parser.add_argument("--strategy", default="ddp",
                        choices=("single", "ddp", "zero1", "fsdp2"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="fp32",
                        choices=("fp32", "bf16"))
    parser.add_argument("--compile", action="store_true",
                        help="torch.compile the model")
    parser.add_argument("--masked_diffusion", action="store_true")
    parser.add_argument("--lora_rank", type=int, default=0)
    return parser.parse_args()


def build(args):
    torch.manual_seed(0)
    # A base below adapters is kept in the precision of the products.
    narrow = args.lora_rank and args.precision == "bf16"
    model = LlamaForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16 if narrow else torch.float32,
    ) if args.model else LlamaForCausalLM(LlamaConfig(
        is_causal=not args.masked_diffusion,  # of the mask
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
    if args.masked_diffusion:
        for layer in model.model.layers:
            layer.self_attn.is_causal = False  # of attention without a mask
    if args.lora_rank:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(
            r=args.lora_rank, lora_alpha=args.lora_rank,
            target_modules="all-linear"))
    return model


def distribute(model, strategy, device, world):
    """The model as that strategy trains it."""
    if strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh(device.type, (world,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    if strategy == "single":
        return model
    return torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True)


def make_optimizer(model, strategy):
    options = dict(lr=1e-3, weight_decay=0.01)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(
            parameters, optimizer_class=torch.optim.AdamW,
            parameters_as_bucket_view=True, **options)
    return torch.optim.AdamW(parameters, fused=True, **options)


class Batches:
    """The text's bytes (or characters) as this rank's micro-batches."""

    def __init__(self, args, device, rank, world):
        with open(args.text, "rb") as file:
            text = file.read()
        if args.masked_diffusion:
            text = text.decode()
            ids = {c: FIRST_CHARACTER + i
                   for i, c in enumerate(sorted(set(text)))}
            self._data = torch.tensor([ids[c] for c in text],
                                      dtype=torch.int32)
        else:
            self._data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._length = args.sequence_length
        self._micro = args.micro_batch_size
        self._device, self._rank, self._world = device, rank, world

    def of_step(self, step):
        n = self._length
        windows = self._data.numel() // n
        first = (step * self._world + self._rank) * self._micro
        rows = [(first + i) % windows for i in range(self._micro)]
        ids = torch.stack([self._data[i * n:(i + 1) * n] for i in rows])
        return ids.long().to(self._device)


def masked_diffusion_loss(model, ids, mask_id):
    """Nie et al., "Large Language Diffusion Models", 2025, as their guidelines
    have it: cross-entropy / p of the masked tokens, over the number of all."""
    batch, length = ids.shape
    t = torch.rand(batch, 1, device=ids.device)
    p = ((1 - EPS) * t + EPS).expand(batch, length)
    masked = torch.rand(batch, length, device=ids.device) < p
    logits = model(input_ids=ids.masked_fill(masked, mask_id)).logits
    losses = F.cross_entropy(logits[masked], ids[masked], reduction="none")
    return (losses / p[masked]).sum() / ids.numel()


def compiled_graphs():
    """How many graphs torch.compile has made so far in this process."""
    import torch._dynamo.utils as utils
    return utils.counters["stats"]["unique_graphs"]


def train(args, model, optimizer, batches, world):
    """Seconds by step, the last loss; under torch.compile also how many graphs
    were compiled after the warm-up (0 if what is timed is the steady state)."""
    bf16 = torch.autocast(args.device, torch.bfloat16,
                          enabled=args.precision == "bf16")
    seconds, graphs = [], 0
    for step in range(args.steps):
        if args.compile and step == WARM_UP_STEPS:
            graphs = compiled_graphs()
        begin = time.perf_counter()
        ids = batches.of_step(step)
        with bf16:
            if args.masked_diffusion:
                loss = masked_diffusion_loss(model, ids, args.vocab_size - 1)
            else:
                loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = loss.detach()
        if world > 1:
            dist.all_reduce(total)
            total /= world
        last = total.item()  # waits for a GPU
        seconds.append(time.perf_counter() - begin)
    late = compiled_graphs() - graphs if args.compile else None
    return seconds, last, late


def peak_memory(device, world):
    """Bytes of the fullest rank: of tensors on a GPU, else of the process."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    most = torch.tensor(peak, device=device)
    if world > 1:
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.item()


def main():
    args = parse()
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    model = build(args).to(device)
    if world > 1:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
        model = distribute(model, args.strategy, device, world)
    parameters = sum(p.numel() for p in model.parameters())
    if args.compile:
        model = torch.compile(model)
    optimizer = make_optimizer(model, args.strategy)
    batches = Batches(args, device, rank, world)
    ready = time.time() - START
    seconds, loss, late_graphs = train(args, model, optimizer, batches, world)
    steady = seconds[min(WARM_UP_STEPS, len(seconds) - 1):]
    peak = peak_memory(device, world)
    if rank == 0:
        tokens = args.micro_batch_size * args.sequence_length * world
        print(json.dumps({
            "tokens_per_second": statistics.median(tokens / s for s in steady),
            "step_seconds_median": statistics.median(steady),
            "warm_up_seconds": sum(seconds) - sum(steady),
            "graphs_compiled_after_warm_up": late_graphs,
            "ready_seconds": ready,
            "peak_memory_bytes": peak,
            "final_loss": loss,
            "parameters": parameters,
        }))
    if world > 1:
        dist.barrier()
    # Leaving the interpreter in the usual way hangs now and then.
    sys.stdout.flush()
    os._exit(0)


main()
