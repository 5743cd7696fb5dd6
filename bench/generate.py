#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generation on CPUs: ours beside transformers' generate and what memory gives.

    python3 bench/generate.py [--weights float32,bfloat16,int8] [--batches 1,16]
        [--threads 1,2] [--family smollm2-135m] [--repeats 3]

Greedy continuations of one prompt, the same in each row of a batch, by a model
of SmolLM2-135M's shape with random weights, written in float32 for the float32
rows and in bfloat16 for the others (or --model FOLDER, with its tokenizer, in
which no token ends a text here); transformers, which has no int8 for CPUs of
its own, stands beside int8 in bfloat16. A process is pinned to as many cores as it has threads. A round
runs STREAM (stream.cc), ours and transformers in turn, every other round in
reverse order. A token's time is the difference of two lengths' times, a
prompt's token that of two prompts', so that start and loading don't count.

Prints a table of medians: new tokens/s, prompt tokens/s, the share of STREAM's
read that weights read once a step take, peak memory by the weights' size; and
whether both sides' greedy texts agree in float32. Writes it and every
measurement to --output (default runs/bench/TIME). transformers comes from
bench/.venv, made the first time, or --python.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import compare
import comparison
import contestants
import processes
import report

STREAM, OURS, PEER = "stream", "capstan", "transformers"
SHORT, LONG = 8, {1: 136, 16: 72}  # new tokens, by batch
PROMPT = "the quick brown fox jumps over the lazy dog and "
PROMPT_REPEATS = {"short": 8, "long": 64}
PACKAGES = ("torch", "transformers")
TOKENIZER = contestants.ROOT / "datasets/samples/tokenizer"
STREAM_PROGRAM = contestants.ROOT / "bazel-bin/bench/stream"
LIMIT_SECONDS = 900
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def add_options(parser):
    """Those of chat.py, too."""
    parser.add_argument("--model", type=pathlib.Path,
                        help="a Hugging Face folder instead of a made one")
    parser.add_argument("--trainer", type=pathlib.Path,
                        help="instead of building it")
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with torch and transformers "
                        "instead of bench/.venv")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=compare.listed, default=list(BYTES))
    parser.add_argument("--batches", type=compare.listed, default=["1", "16"])
    parser.add_argument("--threads", type=compare.listed, default=["1", "2"])
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--family", default="smollm2-135m",
                        choices=("smollm2-135m", "smollm2-1.7b"),
                        help="whose shape")
    parser.add_argument("--output", type=pathlib.Path, help="a folder")
    parser.add_argument("--stream", type=pathlib.Path,
                        help="stream.cc's program, instead of building it")
    add_options(parser)
    args = parser.parse_args()
    for weights in args.weights:
        if weights not in BYTES:
            parser.error("--weights: %s is none of %s" % (
                weights, ", ".join(BYTES)))
    for batch in args.batches:
        if not batch.isdigit() or int(batch) not in LONG:
            parser.error("--batches: 1 and 16 are known")
    return args


def make_model(python, folder, dtype, family="smollm2-135m"):
    """A folder of random weights and the sample tokenizer."""
    processes.run(
        [str(python), str(contestants.BENCH / "peers/random_model.py"),
         "--family=" + family, "--vocab_size=49152", "--dtype=" + dtype,
         "--output=%s" % folder], contestants.ROOT, dict(os.environ),
        LIMIT_SECONDS)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    return folder


def without_end(model, folder):
    """The model's folder, but for the tokens that would end a text early."""
    folder.mkdir()
    for file in model.resolve().iterdir():
        if file.name in ("config.json", "generation_config.json"):
            config = json.loads(file.read_text())
            # Without it transformers would take its class's own.
            for part in (config, config.get("text_config", {})):
                part["eos_token_id"] = None
            (folder / file.name).write_text(json.dumps(config))
        else:
            (folder / file.name).symlink_to(file)
    return folder


def values_in(folder):
    """How many numbers a folder's weights are, by its files' headers."""
    count = 0
    for file in folder.glob("*.safetensors"):
        with open(file, "rb") as stored:
            header = json.loads(stored.read(
                int.from_bytes(stored.read(8), "little")))
        count += sum(math.prod(tensor["shape"]) for name, tensor in
                     header.items() if name != "__metadata__")
    return count


def peers_dtype(weights):
    return "float32" if weights == "float32" else "bfloat16"


class Runner:
    """Runs one side's part of a cell (weights, threads, batch)."""

    def __init__(self, args, python, folder):
        self._trainer = str(args.trainer or contestants.TRAINER)
        self._stream = str(args.stream or STREAM_PROGRAM)
        self._python = str(python)
        self._folder = folder
        given = args.model and without_end(args.model, folder / "given")
        self._models = {
            dtype: given or make_model(python, folder / dtype, dtype,
                                       args.family)
            for dtype in sorted({peers_dtype(w) for w in args.weights})}
        self._prompts = {}
        for name, repeats in PROMPT_REPEATS.items():
            self._prompts[name] = (PROMPT * repeats).strip()

    def model(self, weights):
        return str(self._models[peers_dtype(weights)])

    def weight_bytes(self, weights):
        """Of the folder's numbers in that form."""
        return (values_in(self._models[peers_dtype(weights)]) *
                BYTES[weights])

    def _run(self, threads, words):
        """Seconds, output and peak RSS in bytes."""
        env = dict(os.environ, OMP_NUM_THREADS=str(threads),
                   CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
        command = ["taskset", "-c", ",".join(map(str, range(threads)))] + words
        with tempfile.TemporaryFile("w+") as out:
            with tempfile.TemporaryFile("w+") as errors:
                begin = time.perf_counter()
                process = subprocess.Popen(command, stdout=out, env=env,
                                           stderr=errors)
                _, status, usage = os.wait4(process.pid, 0)
                seconds = time.perf_counter() - begin
                process.returncode = status
                if status != 0:
                    errors.seek(0)
                    raise processes.RunError("%s failed:\n%s" % (
                        " ".join(words), errors.read()[-2000:]))
            out.seek(0)
            return seconds, out.read(), usage.ru_maxrss * 1024

    def stream(self, threads):
        _, out, _ = self._run(threads, [
            self._stream, "--threads=%d" % threads, "--rounds=2"])
        return {"read": json.loads(out)["read"]}

    def ours(self, weights, threads, batch):
        def generate(prompt, tokens):
            prompts = self._folder / "prompts.txt"
            prompts.write_text((self._prompts[prompt] + "\n") * batch)
            output = self._folder / "output.jsonl"
            output.unlink(missing_ok=True)
            seconds, _, rss = self._run(threads, [
                self._trainer, "generate", "--model=" + self.model(weights),
                "--greedy", "--weights=" + weights,
                "--max_new_tokens=%d" % tokens, "--input=%s" % prompts,
                "--output=%s" % output, "--batch_size=%d" % batch])
            texts = [json.loads(line)["text"]
                     for line in output.read_text().splitlines()]
            if texts != [texts[0]] * batch:
                raise processes.RunError("equal prompts got unequal texts")
            return seconds, rss, texts[0]
        short, rss_short, text = generate("short", SHORT)
        long, rss_long, _ = generate("short", LONG[batch])
        prompt, rss_prompt, _ = generate("long", SHORT)
        return {"seconds": {"short": short, "long": long, "prompt": prompt},
                "rss": max(rss_short, rss_long, rss_prompt), "text": text}

    def theirs(self, weights, threads, batch):
        _, out, rss = self._run(threads, [
            self._python, str(contestants.BENCH / "peers/hf_generate.py"),
            "--model=" + self.model(weights),
            "--dtype=" + peers_dtype(weights), "--threads=%d" % threads,
            "--batch=%d" % batch, "--short=%d" % SHORT,
            "--long=%d" % LONG[batch],
            "--prompt=" + self._prompts["short"],
            "--long_prompt=" + self._prompts["long"]])
        return {**json.loads(out.splitlines()[-1]), "rss": rss}

    def measure(self, side, weights, threads, batch):
        if side == STREAM:
            return self.stream(threads)
        figures = (self.ours if side == OURS else self.theirs)(
            weights, threads, batch)
        print("%s %s, %d threads, batch %d: %.4g tokens/s" % (
            side, weights, threads, batch, rate(figures, batch)),
            file=sys.stderr)
        return figures


def rate(figures, batch):
    """New tokens a second, of all rows."""
    seconds = figures["seconds"]
    return batch * (LONG[batch] - SHORT) / (seconds["long"] - seconds["short"])


def prompt_rate(figures, batch, tokens):
    """Prompt tokens a second, of all rows; `tokens` by prompt."""
    seconds = figures["seconds"]
    return (batch * (tokens["long"] - tokens["short"]) /
            (seconds["prompt"] - seconds["short"]))


def spread_text(values):
    spread = comparison.spread(values)
    return "%.4g (%.4g..%.4g)" % (spread["median"], spread["lowest"],
                                  spread["highest"])


def row(cell, runs, size):
    """A line of the table: `runs` by side, in order of rounds."""
    weights, threads, batch = cell
    ours = [rate(f, batch) for f in runs[OURS]]
    theirs = [rate(f, batch) for f in runs[PEER]]
    tokens = runs[PEER][0]["prompt_tokens"]
    prompts = {side: [prompt_rate(f, batch, tokens) for f in runs[side]]
               for side in (OURS, PEER)}
    share = [r / batch * size * 1e-9 / s["read"]
             for r, s in zip(ours, runs[STREAM])]
    peaks = [max(f["rss"] for f in runs[side]) for side in (OURS, PEER)]
    return [weights, str(threads), str(batch), spread_text(ours),
            spread_text(theirs),
            report.ratio(comparison.ratios(dict(enumerate(ours)),
                                           dict(enumerate(theirs)))),
            "%.0f %%" % (100 * comparison.spread(share)["median"]),
            spread_text(prompts[OURS]), spread_text(prompts[PEER]),
            "%.0f (%.2fx)" % (peaks[0] * 1e-6, peaks[0] / size),
            "%.0f" % (peaks[1] * 1e-6)]


def table(measurements, sizes):
    """As Markdown; sizes: the weights' bytes by form."""
    runs = {}
    for m in measurements:
        cell = (m["weights"], m["threads"], m["batch"])
        runs.setdefault(cell, {}).setdefault(m["side"], []).append(m)
    lines = [row(cell, sides, sizes[cell[0]]) for cell, sides in runs.items()
             if len(sides) == 3]
    return report.markdown_table(
        ["weights", "threads", "batch", "tokens/s", "transformers", "ratio",
         "of STREAM", "prompt tokens/s", "transformers", "peak MB (weights)",
         "transformers"], lines)


def agreement(measurements):
    """What both sides wrote in float32, compared."""
    texts = {m["side"]: m["text"] for m in measurements
             if m["weights"] == "float32" and "text" in m}
    if len(texts) < 2:
        return ""
    return "Greedy texts in float32: %s.\n" % (
        "equal" if texts[OURS] == texts[PEER] else
        "%r, but transformers' %r" % (texts[OURS], texts[PEER]))


def describe(args, python):
    return {
        "command": shlex.join(["python3", "bench/generate.py", *sys.argv[1:]]),
        "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
        "commit": compare.commit(), "cores": os.cpu_count(),
        "device_name": contestants.Runner("cpu", python).device_name(),
        "load": os.getloadavg()[0], "rounds": args.repeats,
        "versions": contestants.versions(python, PACKAGES)}


def write(folder, results, sizes):
    about = results["about"]
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "report.md").write_text(
        "# Generation on a CPU\n\n`%s`, %s, commit %s; %s, %d cores, load "
        "%.1f; transformers %s; medians of %d rounds.\n\n%s\n%s" % (
            about["command"], about["date"], about["commit"],
            about["device_name"], about["cores"], about["load"],
            about["versions"]["transformers"], about["rounds"],
            table(results["measurements"], sizes),
            agreement(results["measurements"])))


def main():
    args = parse()
    # So that what runs is ended first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.trainer is None or args.stream is None:
        contestants.ensure_trainer("//bench:stream")
    python = args.python or contestants.ensure_peer(packages=PACKAGES)
    folder = args.output or contestants.ROOT / "runs/bench" / (
        datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
    folder.mkdir(parents=True, exist_ok=True)
    cells = [(weights, int(threads), int(batch)) for weights in args.weights
             for threads in args.threads for batch in args.batches]
    with tempfile.TemporaryDirectory(prefix="capstan_bench_") as made:
        runner = Runner(args, python, pathlib.Path(made))
        sizes = {weights: runner.weight_bytes(weights)
                 for weights in args.weights}
        results = {"about": describe(args, python), "measurements": []}
        for round_ in range(args.repeats):
            for cell in cells:
                for side in comparison.in_turn((STREAM, OURS, PEER), round_):
                    results["measurements"].append({
                        "round": round_, "side": side,
                        **dict(zip(("weights", "threads", "batch"), cell)),
                        **runner.measure(side, *cell)})
            write(folder, results, sizes)
    print(table(results["measurements"], sizes),
          agreement(results["measurements"]), sep="\n", end="")
    print("\nWritten to %s: report.md, results.json" % folder)


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
