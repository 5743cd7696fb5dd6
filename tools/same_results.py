#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether two trainers give the same numbers, to the last bit.

  tools/same_results.py BEFORE/bazel-bin/trainer/trainer bazel-bin/trainer/trainer

Trains a few steps of each quickstart under several strategies and precisions
with both, one after the other in the same folder, and compares what they leave
behind: metrics without times, checkpoints, final/ and what objectives measure.
Exits with 1 where anything differs. For changes that aren't about numerics.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

# Numbers that a clock or the machine makes.
TIMES = re.compile(r"seconds|per_second|ready|peak|memory|time|date|speed")
STEPS = ["train.max_steps=10", "train.eval_every=5", "train.save_every=5",
         "train.log_every=1", "schedule.warmup_steps=2"]
STRATEGIES = ["capstan.ddp", "capstan.zero2", "capstan.fsdp"]


def cases():
    """(name, config, settings, settings of a run that goes on) of each."""
    lm = "run_distributed.pbtxt"
    for strategy in STRATEGIES:
        other = STRATEGIES[(STRATEGIES.index(strategy) + 1) % 3]
        yield (f"lm {strategy}, resumed under {other}", lm,
               [f"strategy={strategy}", "train.eval_batches=4"],
               [f"strategy={other}", "train.eval_batches=4",
                "train.max_steps=15", "train.resume=AUTO"])
    yield ("lm single", lm, ["strategy=capstan.single", "launch.processes=1",
                             "train.eval_batches=4"], None)
    yield ("lm in turns, 2 ranks, accumulation 4", lm,
           ["batch.micro_batch_size=2", "batch.global_batch_size=16",
            "train.activation_checkpointing=EVERY_UNIT",
            "train.eval_batches=4"], None)
    for precision in ["bf16", "fp16"]:
        yield (f"lm {precision}", lm,
               [f"precision=capstan.{precision}", "train.eval_batches=4"],
               None)
    yield ("lm sgd", lm, ["optimizer=capstan.sgd",
                          "optimizer.learning_rate=0.1",
                          "train.eval_batches=4"], None)
    yield ("chat", "sft_quickstart.pbtxt", ["train.eval_batches=4"], None)
    yield ("masked diffusion", "llada_quickstart.pbtxt",
           ["strategy=capstan.zero2", "train.eval_batches=4"], None)
    yield ("algorithm distillation", "ad_darkroom_quickstart.pbtxt",
           ["train_data.path={work}/histories.hdf5",
            "objective.evaluation.episodes=3",
            "objective.evaluation.final_episodes=4"], None)


def run(trainer, arguments, log):
    with open(log, "w") as out:
        done = subprocess.run([trainer] + arguments, stdout=out,
                              stderr=subprocess.STDOUT,
                              env=dict(os.environ, OMP_NUM_THREADS="1"),
                              check=False)
    if done.returncode != 0:
        print(open(log).read()[-2000:])
        raise SystemExit(f"{trainer} {' '.join(arguments)}: "
                         f"exit {done.returncode}")


def train(trainer, config, settings, again, work, kept):
    """Trains into WORK/run and moves what came out to `kept`."""
    run_folder = work / "run"
    shutil.rmtree(run_folder, ignore_errors=True)
    for number, part in enumerate([settings, again]):
        if part is None:
            continue
        chosen = STEPS + part + [f"output_dir={run_folder}"]
        if number == 1:
            chosen = STEPS[1:] + part + [f"output_dir={run_folder}"]
        arguments = [f"--config={config}"]
        for setting in chosen:
            arguments += ["--set", setting.replace("{work}", str(work))]
        run(trainer, arguments, work / "log")
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    run_folder.rename(kept)


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items()
                if not TIMES.search(k)}
    if isinstance(value, list):
        return [without_times(v) for v in value]
    return value


def content(path, checkout):
    """What of a file must be equal; None: nothing."""
    if path.name.startswith("events.out") or path.name == "README.md":
        return None
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in open(path)]
    if path.suffix in (".json", ".pbtxt"):
        # Data that the build makes is named by the checkout's folder, of which
        # a manifest has a checksum.
        text = path.read_text().replace(checkout, "CHECKOUT")
        if path.name == "summary.json":
            return without_times(json.loads(text))
        if path.name == "manifest.json":
            text = text[:text.rindex('"crc32c"')]
        return text
    return path.read_bytes()


def differences(before, after, checkouts):
    def files(folder):
        return {p.relative_to(folder) for p in folder.rglob("*")
                if p.is_file() and p.name != ".lock"  # says since when
                and not p.name.startswith("events.out")}
    mine, theirs = files(before), files(after)
    for path in sorted(mine ^ theirs):
        yield f"{path}: only {'before' if path in mine else 'after'}"
    for path in sorted(mine & theirs):
        if (content(before / path, checkouts["before"]) !=
                content(after / path, checkouts["after"])):
            yield f"{path}: differs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--work", default="/tmp/same_results",
                        help="a folder that this may fill")
    parser.add_argument("--only", default="", help="cases with this in them")
    options = parser.parse_args()
    work = pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    trainers = {"before": os.path.abspath(options.before),
                "after": os.path.abspath(options.after)}

    # As the trainer names it: its own file's folder, past all links.
    checkouts = {which: os.path.realpath(trainer).split("/bazel-out/")[0]
                 for which, trainer in trainers.items()}

    unequal = 0
    histories = {}
    for name, config, settings, again in cases():
        if options.only not in name:
            continue
        for which, trainer in trainers.items():
            if "{work}" in " ".join(settings):
                run(trainer, ["collect", f"--config={config}",
                              "--set", f"train_data.path={work}/histories.hdf5",
                              "--set", "collect.streams=8",
                              "--set", "collect.steps=2400", "--force"],
                    work / "log")
                histories[which] = (work / "histories.hdf5").read_bytes()
            train(trainer, config, settings, again, work,
                  work / which / name.replace(" ", "_"))
        found = list(differences(work / "before" / name.replace(" ", "_"),
                                 work / "after" / name.replace(" ", "_"),
                                 checkouts))
        if histories and histories["before"] != histories["after"]:
            found.append("the collected histories differ")
        count = sum(1 for _ in (work / "after" / name.replace(" ", "_"))
                    .rglob("*"))
        print(f"{'DIFFERENT' if found else 'equal    '} {name} "
              f"({count} files)", flush=True)
        for line in found:
            print("    " + line)
        unequal += bool(found)
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
