#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capstan and TRL's SFTTrainer on the same conversations, in turn, in one run.

    python3 bench/sft.py [--family qwen3] [--data FILE.jsonl]
        [--packings packed,padded] [--ranks 2] [--repeats 5]

Ranks of one thread each on CPUs, fp32: a Llama of the shape `mini` with the
sample tokenizer's vocabulary, or another family's model of random weights
(peers/random_model.py), which both sides read; two rows of at most 512 tokens a
rank and step, packed by best fit or padded. FILE has rows of {"messages"} or
{"question", "answer"}; by default the build's sample chats. A round runs all of
them once, every other round in reverse order.

Prints the table of medians and ratios with what must be reached, and for a
family how far the losses of any padded step are apart; and writes to
--output (default runs/bench/TIME): report.md and results.json. TRL and what it
needs is installed in bench/.venv at need.
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import shutil
import signal
import sys
import tempfile

import compare
import comparison
import contestants
import processes
import report

SHAPE = "mini"  # of the family llama
FAMILIES = ("llama", "qwen3", "gemma3")
# By the name that the table has: ours.
PACKINGS = {"packed": "BEST_FIT", "padded": "NONE"}
MAX_LENGTH = 512
MICRO_BATCH_SIZE = 2
STEPS = 30
WARM_UP_STEPS = 2  # as peers/trl_sft.py
TOKENIZER = contestants.ROOT / "datasets/samples/tokenizer"
VOCAB_SIZE = 4096
CHATS = contestants.ROOT / "bazel-bin/datasets/samples/chats.jsonl"
REQUIREMENTS = contestants.BENCH / "peers/requirements_sft.txt"
PACKAGES = ("torch", "transformers", "trl")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default="llama")
    parser.add_argument("--ranks", type=int, default=contestants.RANKS["cpu"])
    parser.add_argument("--data", type=pathlib.Path, default=CHATS)
    parser.add_argument("--packings", type=compare.listed, default=list(PACKINGS))
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=pathlib.Path, help="a folder")
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with %s instead of bench/.venv" %
                        ", ".join(PACKAGES))
    args = parser.parse_args()
    for packing in args.packings:
        if packing not in PACKINGS:
            parser.error("--packings: %s is none of %s" % (
                packing, ", ".join(PACKINGS)))
    if args.steps <= WARM_UP_STEPS:
        parser.error("--steps must be more than %d" % WARM_UP_STEPS)
    return args


class Runner(contestants.Runner):
    """Runs one side with one packing, a contestant's "strategy" here."""

    def __init__(self, python, args):
        super().__init__("cpu", python, args.trainer or contestants.TRAINER)
        self._data = str(args.data.resolve())
        self._steps = args.steps
        self._ranks = args.ranks
        self._model = None  # a folder; None: a Llama of _sizes()
        if args.family != "llama":
            self._model = self._cache.name + "/model"
            processes.run(
                [self._python, str(contestants.BENCH / "peers/random_model.py"),
                 "--family=" + args.family, "--vocab_size=%d" % VOCAB_SIZE,
                 "--output=" + self._model],
                contestants.ROOT, self._environment(),
                contestants.RUN_LIMIT_SECONDS)

    def _sizes(self):
        sizes = contestants.SHAPES[SHAPE]._asdict()
        return {k: v for k, v in sizes.items() if k != "vocab_size"}

    def _model_settings(self):
        if self._model:
            return {"model": "capstan.decoder",
                    "model.pretrained": self._model}
        return {"model.vocab_size": VOCAB_SIZE,
                **{"model." + k: v for k, v in self._sizes().items()}}

    def _run_capstan(self, contestant, profiled=()):
        with tempfile.TemporaryDirectory(prefix="capstan_bench_") as folder:
            run = folder + "/run"
            # A copy, so that nothing is kept beside the data, and every run's
            # start has to read it.
            data = shutil.copy(self._data, folder)
            settings = {
                "output_dir": run,
                "train_data.path": data,
                "train_data.tokenizer": TOKENIZER,
                "train_data.max_length": MAX_LENGTH,
                "train_data.packing": PACKINGS[contestant.strategy],
                "batch.micro_batch_size": MICRO_BATCH_SIZE,
                "train.max_steps": self._steps,
                "launch.processes": self._ranks,
                **self._model_settings()}
            command = [self._trainer, "--config=bench/sft.pbtxt"]
            for name, value in settings.items():
                command += ["--set", "%s=%s" % (name, value)]
            processes.run(command, contestants.ROOT, self._environment(),
                          contestants.RUN_LIMIT_SECONDS)
            summary = json.loads(pathlib.Path(run, "summary.json").read_text())
            metrics = pathlib.Path(run, "metrics.jsonl").read_text()
        steps = [line for line in map(json.loads, metrics.splitlines())
                 if "loss" in line]
        summary["tokens_per_second"] = self._speed(steps)
        summary["losses"] = [step["loss"] for step in steps]
        summary["peak_memory_bytes"] = max(summary["peak_memory_bytes"])
        return summary, None

    def _speed(self, steps):
        """Tokens a second after the warm-up, without padding, as the peer
        counts them."""
        seconds = sum(step["step_seconds"] for step in steps[WARM_UP_STEPS:])
        return (steps[-1]["tokens"] -
                steps[WARM_UP_STEPS - 1]["tokens"]) / seconds

    def _peer_arguments(self):
        return [str(contestants.BENCH / "peers/trl_sft.py"),
                "--rows=" + self._data, "--tokenizer=%s" % TOKENIZER,
                "--max_length=%d" % MAX_LENGTH, "--steps=%d" % self._steps,
                "--micro_batch_size=%d" % MICRO_BATCH_SIZE,
                *(["--model=" + self._model] if self._model else
                  ["--%s=%d" % item for item in self._sizes().items()])]

    def _run_peer(self, contestant):
        command = [self._python, "-m", "torch.distributed.run",
                   "--nproc_per_node=%d" % self._ranks,
                   "--master_addr=127.0.0.1",
                   "--master_port=%d" % contestants.free_port(),
                   *self._peer_arguments()]
        if contestant.strategy == "packed":
            command.append("--packing")
        output = processes.run(
            command, contestants.ROOT, self._environment(),
            contestants.PEER_LIMIT_SECONDS[contestant.side])
        return json.loads(output.strip().splitlines()[-1])


def describe(args, runner, python):
    """What the figures depend on, for results.json and the report."""
    return {
        "command": shlex.join(["python3", "bench/sft.py", *sys.argv[1:]]),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "commit": compare.commit(), "device_name": runner.device_name(),
        "cores": os.cpu_count(), "load": os.getloadavg()[0],
        "versions": contestants.versions(python, PACKAGES),
        "precision": contestants.PRECISION["cpu"],
        "ranks": args.ranks, "rounds": args.repeats,
        "data": args.data.name, "steps": args.steps,
        "max_length": MAX_LENGTH, "micro_batch_size": MICRO_BATCH_SIZE}


def loss_line(measurements):
    """How far the sides' losses are apart: of padded rows, as each side has its
    own order of packs. "" without them."""
    sides = {m["side"]: m["losses"] for m in measurements
             if m["strategy"] == "padded"}
    if len(sides) < 2:
        return ""
    ours, theirs = sides[comparison.CAPSTAN], sides[comparison.EAGER]
    return "padded: the losses of %d steps differ by at most %.1e\n" % (
        len(ours), max(abs(a - b) for a, b in zip(ours, theirs)))


def write(folder, results):
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    about = results["about"]
    (folder / "report.md").write_text("\n".join([
        "# Capstan and TRL's SFTTrainer on the same rows\n",
        report.heading(about),
        "TRL %s; %s, %d steps, rows of at most %d tokens, %d a rank.\n" % (
            about["versions"]["trl"], about["data"], about["steps"],
            about["max_length"], about["micro_batch_size"]),
        report.ratio_table(results["rows"]), results["losses"]]))


def main():
    args = parse()
    # So that what runs is ended first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.trainer is None:
        contestants.ensure_trainer()
    python = args.python or contestants.ensure_peer(REQUIREMENTS, PACKAGES)
    folder = args.output or contestants.ROOT / "runs/bench" / (
        datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
    folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(python, args)
    shape = SHAPE if args.family == "llama" else args.family
    who = [comparison.Contestant(shape, packing, side)
           for packing in args.packings
           for side in (comparison.CAPSTAN, comparison.EAGER)]
    results = {"about": describe(args, runner, python), "rows": [],
               "losses": "", "measurements": []}
    try:
        for round_ in range(args.repeats):
            for contestant in comparison.in_turn(who, round_):
                results["measurements"].append(
                    compare.measure(runner, contestant, round_, None))
    finally:
        if results["measurements"]:
            results["rows"] = comparison.rows("sft", who,
                                              results["measurements"])
            if args.family != "llama":
                # Each side draws its own Llama.
                results["losses"] = loss_line(results["measurements"])
            write(folder, results)
    print(report.ratio_table(results["rows"]), results["losses"],
          sep="\n", end="")
    print("\nWritten to %s: report.md, results.json" % folder)


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
