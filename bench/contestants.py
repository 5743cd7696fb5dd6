# SPDX-License-Identifier: Apache-2.0
"""Runs one contestant: our trainer, or the same work in PyTorch.

Both get the same text, sizes, batch, number of steps and threads, and leave the
same first steps out of the median (two: kWarmUpSteps in
trainer/session/step_records.cc, WARM_UP_STEPS in peers/torch_lm.py).
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import typing

import comparison
import processes

# Among a test's runfiles these are links out of it.
ROOT = pathlib.Path(__file__).absolute().parent.parent
BENCH = ROOT / "bench"
VENV = BENCH / ".venv"
REQUIREMENTS = BENCH / "peers/requirements.txt"
PACKAGES = ("torch", "transformers", "matplotlib")
LORA_PACKAGES = PACKAGES + ("peft",)
TEXT = ROOT / "bazel-bin/datasets/samples/libtorch_headers.txt"
TRAINER = ROOT / "bazel-bin/trainer/trainer"

RUN_LIMIT_SECONDS = 900
PEER_LIMIT_SECONDS = {comparison.EAGER: 300, comparison.COMPILED: 900}
PEER_TRIES = 2  # torchrun has been seen to hang
PROFILED_STEPS = 3  # the last ones


class Sizes(typing.NamedTuple):
    """A Llama's, named as in Hugging Face's config.json."""
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int


class Work(typing.NamedTuple):
    sequence_length: int
    micro_batch_size: int
    steps: int


LORA_RANK = 16
# Ours of Sizes' fields, in their order, in a LLaDA's config.
LLADA_FIELDS = ("d_model", "mlp_hidden_size", "n_layers", "n_heads",
                "n_kv_heads", "vocab_size")

# Embeddings are tied. The Qwen2.5 sizes are those of LLMQ's benchmark, without
# the biases of q, k and v, which a Llama doesn't have.
SHAPES = {
    "tiny": Sizes(64, 172, 2, 4, 2, 256),
    "mini": Sizes(256, 688, 6, 8, 4, 512),
    "smollm2-135m": Sizes(576, 1536, 30, 9, 3, 49152),
    "smollm2-1.7b": Sizes(2048, 8192, 24, 32, 32, 49152),
    "qwen2.5-0.5b": Sizes(896, 4864, 24, 14, 2, 151936),
    "qwen2.5-1.5b": Sizes(1536, 8960, 28, 12, 2, 151936),
}
WORK = {
    "cpu": {"tiny": Work(64, 4, 200), "mini": Work(128, 4, 40),
            "smollm2-135m": Work(256, 1, 8)},
    "cuda": {"smollm2-135m": Work(1024, 16, 30),
             "smollm2-1.7b": Work(1024, 8, 20),
             "qwen2.5-0.5b": Work(1024, 8, 30),
             "qwen2.5-1.5b": Work(1024, 4, 30)},
}
# CPUs also run these in bf16 and by other methods, as shapes of their own.
for _shape in ("tiny", "mini", "smollm2-135m"):
    for _end in (comparison.BF16, comparison.LLADA, comparison.LORA,
                 comparison.THREADS):
        SHAPES[_shape + _end] = SHAPES[_shape]
        WORK["cpu"][_shape + _end] = WORK["cpu"][_shape]
PRECISION = {"cpu": "fp32", "cuda": "bf16"}
RANKS = {"cpu": 2, "cuda": 1}


def precision(device, shape):
    """Of a run of that shape."""
    return "bf16" if shape.endswith(comparison.BF16) else PRECISION[device]


def ranks_and_threads(device, shape):
    """How many ranks such a run has, and how many threads each of them."""
    if shape.endswith(comparison.THREADS):
        return 1, RANKS[device]
    return RANKS[device], 1


def method(shape):
    """LLADA, LORA, or "" for a causal language model, all weights trained."""
    for end in (comparison.LLADA, comparison.LORA):
        if shape.endswith(end):
            return end
    return ""


# Dense bf16, from NVIDIA's data sheets of the H100 SXM and the H200.
PEAK_FLOPS = {"H100 80GB HBM3": 989e12, "H200": 989e12}


def flops_per_token(parameters, sizes, sequence_length):
    """Of forward and backward: 6 N + 12 L H Q T, with N parameters, L layers,
    H heads of Q numbers each and T tokens a sequence (Chowdhery et al., "PaLM",
    2022, appendix B); H Q is the hidden size here."""
    return (6.0 * parameters + 12.0 * sizes.num_hidden_layers *
            sizes.hidden_size * sequence_length)


def peak_flops(device_name):
    """FLOP/s, or None for hardware whose peak isn't listed."""
    for name, flops in PEAK_FLOPS.items():
        if device_name.endswith(name):
            return flops
    return None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ensure_trainer(*more):
    """Builds the trainer, and other targets."""
    subprocess.run([str(ROOT / "bazelw"), "build", "//trainer:all", *more],
                   check=True, cwd=ROOT)


def packages_of(shapes):
    """What the peers' interpreter must have for these."""
    lora = any(method(shape) == comparison.LORA for shape in shapes)
    return LORA_PACKAGES if lora else PACKAGES


def ensure_peer(requirements=REQUIREMENTS, packages=PACKAGES):
    """The peers' interpreter, of a virtual environment made at need."""
    python = VENV / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    if versions(python, packages) is None:
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r",
                        str(requirements)], check=True)
    return python


def versions(python, packages=PACKAGES):
    """Versions of that interpreter and its packages; None if one is missing."""
    code = ("import json, platform; from importlib.metadata import version; "
            "print(json.dumps(dict(python=platform.python_version(), "
            "**{p: version(p) for p in %r})))" % (packages,))
    done = subprocess.run([str(python), "-c", code], capture_output=True,
                          text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


class Runner:
    """Runs contestants on one device ("cpu" or "cuda")."""

    def __init__(self, device, python, trainer=TRAINER, text=TEXT, root=ROOT):
        """`root`: of the tree whose configs the trainer reads."""
        self.device = device
        self._root = root
        self._python = str(python)
        self._trainer = str(trainer)
        self._text = str(text)
        # Compiled kernels are kept from round to round, and no longer.
        self._cache = tempfile.TemporaryDirectory(prefix="capstan_bench_")

    def _environment(self, threads=1):
        env = dict(os.environ, OMP_NUM_THREADS=str(threads),
                   TOKENIZERS_PARALLELISM="false",
                   TORCHINDUCTOR_CACHE_DIR=self._cache.name + "/inductor",
                   TRITON_CACHE_DIR=self._cache.name + "/triton")
        if self.device == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""
        for name in ("RANK", "WORLD_SIZE"):
            env.pop(name, None)
        return env

    def device_name(self):
        """The first GPU's, as PyTorch says it; the processor's for "cpu"."""
        if self.device == "cpu":
            for line in open("/proc/cpuinfo"):
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
            return "unknown"
        return processes.run(
            [self._python, "-c",
             "import torch; print(torch.cuda.get_device_name())"],
            ROOT, self._environment(), 120).strip()

    def measure(self, contestant):
        """The figures of one run; RunError if it can't be had."""
        if contestant.side == comparison.CAPSTAN:
            return self._run_capstan(contestant)[0]
        for left in reversed(range(PEER_TRIES)):
            try:
                return self._run_peer(contestant)
            except processes.RunError as error:
                if left == 0:
                    raise
                print("again: %s" % error, file=sys.stderr)

    def profile(self, contestant):
        """profile.json of a run of ours."""
        steps = WORK[self.device][contestant.shape].steps
        profiled = range(steps - PROFILED_STEPS + 1, steps + 1)
        return self._run_capstan(contestant, profiled)[1]

    def _run_capstan(self, contestant, profiled=()):
        """summary.json, with the peak of the fullest rank, and profile.json
        (None unless steps are profiled)."""
        with tempfile.TemporaryDirectory(prefix="capstan_bench_") as folder:
            run = self.train(contestant, pathlib.Path(folder, "run"), {},
                             profiled)
            summary = json.loads((run / "summary.json").read_text())
            profile = (json.loads((run / "profile.json").read_text())
                       if profiled else None)
        summary["peak_memory_bytes"] = max(summary["peak_memory_bytes"])
        return summary, profile

    def train(self, contestant, run, more, profiled=()):
        """Has our trainer leave a run in that folder, with `more` settings."""
        work = WORK[self.device][contestant.shape]
        kind = method(contestant.shape)
        ranks, threads = ranks_and_threads(self.device, contestant.shape)
        configs = ["--config=bench/llada.pbtxt" if kind == comparison.LLADA
                   else "--config=bench/lm.pbtxt"]
        settings = {
            "output_dir": run,
            "train_data.path": self._text,
            "train_data.sequence_length": work.sequence_length,
            "batch.micro_batch_size": work.micro_batch_size,
            "train.max_steps": work.steps,
            "strategy": "capstan." + contestant.strategy,
            "precision": "capstan." + precision(self.device, contestant.shape),
            "launch.processes": ranks}
        sizes = SHAPES[contestant.shape]
        fields = sizes._fields
        if kind == comparison.LLADA:
            fields = LLADA_FIELDS
            # Windows that don't overlap, as a text's sequences.
            settings["train_data.stride"] = work.sequence_length
        elif kind == comparison.LORA:
            settings["adapter.lora.rank"] = LORA_RANK
            settings["adapter.lora.alpha"] = LORA_RANK
        settings.update({"model." + k: v for k, v in zip(fields, sizes)})
        if profiled:
            settings["profile.steps"] = list(profiled)
        settings.update(more)
        command = [self._trainer, *configs]
        for name, value in settings.items():
            command += ["--set", "%s=%s" % (name, value)]
        processes.run(command, self._root, self._environment(threads),
                      RUN_LIMIT_SECONDS)
        return run

    def _run_peer(self, contestant):
        work = WORK[self.device][contestant.shape]
        ranks, threads = ranks_and_threads(self.device, contestant.shape)
        command = [self._python, "-m", "torch.distributed.run",
                   "--nproc_per_node=%d" % ranks,
                   "--master_addr=127.0.0.1",
                   "--master_port=%d" % free_port(),
                   str(BENCH / "peers/torch_lm.py"),
                   "--device=" + self.device,
                   "--precision=" + precision(self.device, contestant.shape),
                   "--strategy=" +
                   comparison.PEER_STRATEGIES[contestant.strategy],
                   "--text=" + self._text]
        kind = method(contestant.shape)
        if kind == comparison.LLADA:
            command.append("--masked_diffusion")
        elif kind == comparison.LORA:
            command.append("--lora_rank=%d" % LORA_RANK)
        if contestant.side == comparison.COMPILED:
            command.append("--compile")
        arguments = {**SHAPES[contestant.shape]._asdict(), **work._asdict()}
        command += ["--%s=%d" % item for item in arguments.items()]
        output = processes.run(command, ROOT, self._environment(threads),
                               PEER_LIMIT_SECONDS[contestant.side])
        return json.loads(output.strip().splitlines()[-1])
