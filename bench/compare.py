#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capstan and PyTorch on the same work, in turn, in one run.

    python3 bench/compare.py [--shapes tiny,mini,smollm2-135m] [--repeats 3]
        [--strategies ddp,zero2,fsdp]

Two ranks of one thread each on this machine's CPUs; each strategy beside what
PyTorch has of its kind (ddp: DistributedDataParallel, zero2:
ZeroRedundancyOptimizer, fsdp: FSDP2). A round runs all of them in turn. Prints a
table of medians and of the ratios round by round (median, lowest, highest),
also of each strategy to our own ddp, and writes it to --output as JSON if
asked. PyTorch and transformers come from a virtual
environment that is made in bench/.venv the first time.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / "bench" / ".venv"
TEXT = ROOT / "bazel-bin/datasets/samples/libtorch_headers.txt"
TRAINER = ROOT / "bazel-bin/trainer/trainer"

# hidden, intermediate, layers, heads, key/value heads, vocabulary; sequence
# length, micro-batch; steps
SHAPES = {
    "tiny": ((64, 172, 2, 4, 2, 256), (64, 4), 200),
    "mini": ((256, 688, 6, 8, 4, 512), (128, 4), 40),
    "smollm2-135m": ((576, 1536, 30, 9, 3, 49152), (256, 1), 8),
}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads", "num_key_value_heads", "vocab_size")
PEERS = {"ddp": "ddp", "zero2": "zero1", "fsdp": "fsdp2"}
FIGURES = {
    # name: (key, better is larger)
    "tokens/s": ("tokens_per_second", True),
    "ready s": ("ready_seconds", False),
    "peak MB": ("peak_memory_bytes", False),
}


def ensure_built():
    subprocess.run([str(ROOT / "bazelw"), "build", "//trainer"], check=True,
                   cwd=ROOT)


def ensure_peer():
    python = VENV / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q",
                        "torch==2.11.0", "transformers==5.23.0"], check=True)
    return python


def environment():
    env = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
               TOKENIZERS_PARALLELISM="false")
    for name in ("RANK", "WORLD_SIZE"):
        env.pop(name, None)
    return env


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_capstan(shape, strategy):
    sizes, (sequence, micro), steps = SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        command = [str(TRAINER), "--config=bench/lm.pbtxt",
                   "--set", "output_dir=" + folder + "/run",
                   "--set", "strategy=capstan." + strategy,
                   "--set", "train_data.sequence_length=%d" % sequence,
                   "--set", "batch.micro_batch_size=%d" % micro,
                   "--set", "train.max_steps=%d" % steps]
        for name, size in zip(SIZES, sizes):
            command += ["--set", "model.%s=%d" % (name, size)]
        subprocess.run(command, check=True, cwd=ROOT, env=environment(),
                       stdout=subprocess.DEVNULL, timeout=900)
        summary = json.load(open(folder + "/run/summary.json"))
    summary["peak_memory_bytes"] = max(summary["peak_memory_bytes"])
    return summary


def run_peer(shape, strategy, python):
    sizes, (sequence, micro), steps = SHAPES[shape]
    command = [str(python), "-m", "torch.distributed.run",
               "--nproc_per_node=2", "--master_addr=127.0.0.1",
               "--master_port=%d" % free_port(),
               str(ROOT / "bench/peers/torch_lm.py"),
               "--strategy=" + PEERS[strategy],
               "--text=" + str(TEXT), "--sequence_length=%d" % sequence,
               "--micro_batch_size=%d" % micro, "--steps=%d" % steps]
    for name, size in zip(SIZES, sizes):
        command.append("--%s=%d" % (name, size))
    # torchrun has been seen to hang: a limit, its whole session ended, and one
    # more try.
    for _ in range(2):
        peer = subprocess.Popen(command, cwd=ROOT, env=environment(),
                                text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL,
                                start_new_session=True)
        try:
            output, _ = peer.communicate(timeout=180)
            return json.loads(output.strip().splitlines()[-1])
        except subprocess.TimeoutExpired:
            os.killpg(peer.pid, signal.SIGKILL)
            peer.wait()
    sys.exit("the peer did not end: " + " ".join(command))


def ratios_of(ours, others):
    ratios = [a / b for a, b in zip(ours, others)]
    return {"ratio": statistics.median(ratios), "lowest": min(ratios),
            "highest": max(ratios)}


def compare(shape, strategies, repeats, python):
    """Figures by strategy; `vs_ddp` where ddp is one of them."""
    rounds = []
    for _ in range(repeats):
        rounds.append({s: (run_capstan(shape, s), run_peer(shape, s, python))
                       for s in strategies})
    table = {}
    for strategy in strategies:
        table[strategy] = {}
        for name, (key, _) in FIGURES.items():
            ours = [r[strategy][0][key] for r in rounds]
            peer = [r[strategy][1][key] for r in rounds]
            row = {"capstan": statistics.median(ours),
                   "pytorch": statistics.median(peer)}
            row.update(ratios_of(ours, peer))
            if "ddp" in strategies:
                row["vs_ddp"] = ratios_of(
                    ours, [r["ddp"][0][key] for r in rounds])
            table[strategy][name] = row
    return table


def print_rows(shape, table):
    for strategy, rows in table.items():
        for name, row in rows.items():
            scale = 1e-6 if name == "peak MB" else 1.0
            versus = row.get("vs_ddp")
            print("| %s | %s | %s | %.4g | %.4g | %.2fx (%.2f..%.2f) | %s |" % (
                shape, strategy, name, row["capstan"] * scale,
                row["pytorch"] * scale, row["ratio"], row["lowest"],
                row["highest"],
                "%.2fx" % versus["ratio"] if versus else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--strategies", default=",".join(PEERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", help="a JSON file for the figures")
    args = parser.parse_args()
    ensure_built()
    python = ensure_peer()
    figures = {}
    print("| shape | strategy | figure | capstan | pytorch | "
          "ratio (lowest..highest) | of ddp |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for shape in args.shapes.split(","):
        figures[shape] = compare(shape, args.strategies.split(","),
                                 args.repeats, python)
        print_rows(shape, figures[shape])
    if args.output:
        with open(args.output, "w") as file:
            json.dump(figures, file, indent=1)


main()
