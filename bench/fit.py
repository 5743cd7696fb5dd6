#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`trainer fit` against brute force: 50 questions, each way really run.

    ./bazelw build //trainer:all
    sudo bench/fit.py --results=FOLDER [--runs=tiny,wide] [--where=here,1g]

A question is a config and a place: this machine; two hosts (network namespaces,
a rank on each) whose links tbf limits to 0.1, 1 and 10 Gbit/s; this machine with
a control group's memory limit. fit is asked first; then every way that it lists
is run, the nearest to the best again, in turn. FOLDER keeps a JSON file for each
question: what is there isn't run again. Prints the table, in Markdown:
  choice: how much longer than the best way what fit chose really takes;
  time, memory: how far from what was measured fit's figure is, of what it
  chose, and over all ways the median and the worst;
  in range: of how many ways the time lies in fit's range.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import hosts_bench

ROOT = pathlib.Path(__file__).absolute().parent.parent
TRAINER = ROOT / "bazel-bin/trainer/trainer"
PORT = 29571
LIMIT_SECONDS = 90   # of a run
ASK_SECONDS = 600    # of fit, which takes disturbed steps again
GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
STEP_SECONDS = 0.6  # of each run
NEAREST = 4         # ways that are run again
REPEATS = 1
# Ways that fit says take so much longer than the best aren't run: with 0.1
# Gbit/s some take seconds a step.
SLOWEST = 5
# Cores that others keep busy beside a run that counts, and how often it is run
# for that.
QUIET = 0.15
TRIES = 4

RUN = "run_distributed.pbtxt"


def llama(hidden, layers, length, batch, *more):
    return [RUN, f"model.hidden_size={hidden}",
            f"model.intermediate_size={hidden * 8 // 3}",
            f"model.num_hidden_layers={layers}",
            f"model.max_position_embeddings={length}",
            f"train_data.sequence_length={length}",
            "batch.micro_batch_size=1", f"batch.global_batch_size={batch}",
            *more]


# A config and settings.
RUNS = {
    "tiny": llama(64, 3, 64, 16),
    "default": llama(128, 5, 128, 16),
    "wide": llama(384, 3, 128, 8),
    "deep": llama(96, 12, 64, 8),
    "long": llama(128, 3, 512, 8),
    "many": llama(96, 3, 64, 64),
    "bf16": llama(128, 4, 128, 8, "precision=capstan.bf16"),
    "sgd": llama(256, 4, 64, 8, "optimizer=capstan.sgd",
                 "optimizer.learning_rate=0.01", "optimizer.momentum=0.9"),
    "sft": ["sft_quickstart.pbtxt", "batch.global_batch_size=8"],
    "llada": ["llada_quickstart.pbtxt", "batch.micro_batch_size=1",
              "batch.global_batch_size=8"],
}
LINKS = {"0.1g": 0.1, "1g": 1.0, "10g": 10.0}
WHERE = ["here", *LINKS, "limit"]


def seconds_of_others():
    """CPU time of all but this program and its children that have ended."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(word) for word in file.readline().split()[1:]]
    busy = sum(ticks[:3] + ticks[5:8]) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:4])


def words(run, sets=()):
    config, *settings = RUNS[run]
    found = [f"--config={config}"]
    for setting in [*settings, *sets, "train.sample_prompts="]:
        found += ["--set", setting]
    return found


class Place:
    """Where a question's runs take place; a context manager."""

    def __init__(self, limit=0, gbit=0.0):
        self.limit, self.gbit = limit, gbit
        self.hosts = None
        self.group = None

    def __enter__(self):
        if self.gbit:
            self.hosts = hosts_bench.Hosts(2, self.gbit, 100)
            self.hosts.__enter__()
        if self.limit:
            self.group = GROUPS / f"capstan_fit_{os.getpid()}"
            self.group.mkdir()
            (self.group / "memory.limit_in_bytes").write_text(str(self.limit))
            # Without the swap that a group may have.
            with contextlib.suppress(OSError):
                (self.group / "memory.memsw.limit_in_bytes").write_text(
                    str(self.limit))
        return self

    def __exit__(self, *_):
        if self.hosts:
            self.hosts.__exit__()
        if self.group:
            for _ in range(100):  # what was killed may still be ending
                with contextlib.suppress(OSError):
                    self.group.rmdir()
                    break
                time.sleep(0.1)

    def start(self, args, host=0, of=1, **more):
        command = [str(TRAINER), *args]
        environment = dict(os.environ)
        if self.hosts:
            environment["OMP_NUM_THREADS"] = "1"
        if of > 1:
            command = ["ip", "netns", "exec", self.hosts.name(host), *command]
            for setting in [f"nodes={of}", f"node_rank={host}",
                            f"rendezvous={hosts_bench.address(0)}:{PORT}"]:
                command += ["--set", f"launch.{setting}"]
            # One kernel and one name: they would look like one host.
            environment.update(GLOO_SOCKET_IFNAME="eth0",
                               CAPSTAN_HOST_ID=str(host))

        def enter():
            if self.group:
                (self.group / "cgroup.procs").write_text(str(os.getpid()))

        return subprocess.Popen(command, env=environment, preexec_fn=enter,
                                text=True, **more)

    def run(self, args, hosts=1):
        """(exit code, standard output of the first); again if disturbed."""
        outputs = [a.split("=", 1)[1] for a in args
                   if a.startswith("output_dir=")]
        for _ in range(TRIES):
            for output in outputs:
                shutil.rmtree(output, ignore_errors=True)
            begin, others = time.monotonic(), seconds_of_others()
            code, output = self.run_once(args, hosts)
            others = seconds_of_others() - others
            if others < QUIET * (time.monotonic() - begin):
                break
        return code, output

    def run_once(self, args, hosts, limit=LIMIT_SECONDS):
        processes = []
        try:
            for host in range(hosts):
                processes.append(self.start(
                    args, host, hosts, stdout=subprocess.PIPE if host == 0 else
                    subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            output, _ = processes[0].communicate(timeout=limit)
            codes = [process.wait(timeout=60) for process in processes]
            return max(codes, key=abs), output
        except subprocess.TimeoutExpired:
            return -1, ""
        finally:
            for process in processes:
                process.kill()
                process.wait()


def ask(place, args):
    code, output = place.run_once(["fit", *args, "--json"], 1, ASK_SECONDS)
    if not output:
        raise RuntimeError(f"fit failed with {code}: {' '.join(args)}")
    return json.loads(output)


def run_way(place, run, way, folder):
    """What a way really takes: seconds of a step, and bytes of a rank."""
    # Of a way that is refused fit may know no time. A link decides long steps,
    # which differ little.
    least = 5 if way["seconds"] > 1 else 8
    steps = (max(least, min(100, int(STEP_SECONDS / way["seconds"]) + 3))
             if way["seconds"] > 0 else 8)
    with tempfile.TemporaryDirectory(dir=folder) as output:
        sets = [*way["set"], f"output_dir={output}/run", "train.log_every=1",
                "train.eval_every=0", f"train.max_steps={steps}"]
        code, _ = place.run(["train", *words(run, sets)], hosts=way["hosts"])
        if code != 0:
            return {"failed": code}
        lines = [json.loads(line) for line in
                 open(f"{output}/run/metrics.jsonl", encoding="utf-8")]
        summary = json.load(open(f"{output}/run/summary.json",
                                 encoding="utf-8"))
    times = [line["step_seconds"] for line in lines if "step_seconds" in line]
    # As fit: what disturbs the machine makes steps slower.
    return {"seconds": [statistics.quantiles(times[2:], n=4)[0]],
            "memory": max(summary["peak_memory_bytes"])}


def machine_of_hosts(place, run, folder):
    """A description of the two hosts, from what doctor and fit measured."""
    _, output = place.run(["doctor", "--json", f"--config={RUN}", "--set",
                           "launch.processes=1"], hosts=2)
    doctor = folder / "doctor.json"
    doctor.write_text(output)
    # A host has one rank, and both hosts are this machine: a rank computes as
    # fast as one of two that run here at once.
    here = ask(Place(), [*words(run), "--set", "launch.processes=2",
                         "--trials=0"])
    measured = [dict(one, ranks=1, strategy="") for one in
                here["machine"]["measured"]
                if one["ranks"] == 2]
    rest = folder / "measured.json"
    rest.write_text(json.dumps({"hosts": 2, "ranks": 1,
                                "measured": measured}))
    return ["--machine", str(doctor), "--machine", str(rest)]


def limit_of(run):
    """A limit that some ways stay below and others exceed."""
    ways = ask(Place(), [*words(run), "--trials=0"])["ways"]
    needs = sorted(way["memory"] * way["ranks"] for way in ways)
    return int(needs[len(needs) // 3])


def key(way):
    return " ".join(way["set"]) + f" hosts={way['hosts']}"


def answer(run, where, results):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        limit = limit_of(run) if where == "limit" else 0
        with Place(limit, LINKS.get(where, 0.0)) as place:
            args = words(run)
            if place.hosts:
                args += machine_of_hosts(place, run, folder)
            told = ask(Place(limit) if place.hosts else place, args)
            ways = [w for w in told["ways"] if "refused" not in w or limit]
            # With room for all recomputation is work for nothing: of it, what
            # is largest shows that.
            largest = max(w["micro_batch_size"] for w in ways)
            ways = [w for w in ways
                    if w["activation_checkpointing"] == "NONE" or
                    w["micro_batch_size"] == largest]
            if place.hosts:
                ways = [w for w in ways
                        if w["activation_checkpointing"] == "NONE"]
            most = SLOWEST * told["ways"][0]["seconds"]
            ways = [w for w in ways if w["seconds"] <= most]
            truth = {}
            for way in ways:
                truth[key(way)] = run_way(place, run, way, folder)
            chosen = key(told["ways"][0])
            ran = [k for k in truth if "failed" not in truth[k]]
            ran.sort(key=lambda k: truth[k]["seconds"][0])
            nearest = list(dict.fromkeys([*ran[:NEAREST], chosen]))
            by_key = {key(way): way for way in ways}
            for _ in range(REPEATS):
                for k in nearest:
                    again = run_way(place, run, by_key[k], folder)
                    if "failed" not in again and "seconds" in truth[k]:
                        truth[k]["seconds"] += again["seconds"]
    found = {"run": run, "where": where, "limit": limit, "told": told,
             "truth": truth, "nearest": nearest}
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{run}-{where}.json").write_text(json.dumps(found))
    return found


def off(told, real):
    return told / real - 1.0


def percent(value):
    return f"{100 * value:+.0f} %"


def row(found):
    ways = {key(way): way for way in found["told"]["ways"]}
    truth = {k: t for k, t in found["truth"].items() if "failed" not in t}
    seconds = {k: statistics.median(t["seconds"]) for k, t in truth.items()}
    chosen = key(found["told"]["ways"][0])
    if chosen not in seconds:
        return f"| {found['run']} | {found['where']} | the choice failed |"
    best = min(seconds[k] for k in found["nearest"] if k in seconds)
    told = [k for k in truth if ways[k]["seconds"] > 0]
    times = [off(ways[k]["seconds"], seconds[k]) for k in told]
    inside = sum(ways[k]["seconds_low"] <= seconds[k] <= ways[k]["seconds_high"]
                 for k in told)
    memory = [off(ways[k]["memory"], truth[k]["memory"]) for k in truth]

    def spread(values):
        return (f"{100 * statistics.median(map(abs, values)):.0f}, "
                f"{100 * max(map(abs, values)):.0f} %")

    way = ways[chosen]
    name = way["strategy"].replace("capstan.", "")
    recompute = way["activation_checkpointing"]
    wrong = [k for k, t in found["truth"].items()
             if ("failed" in t) != ("refused" in ways[k])]
    return (f"| {found['run']} | {found['where']} | {len(found['truth'])} | "
            f"{name}, {way['hosts']} x {way['ranks']}, "
            f"{way['micro_batch_size']} x {way['accumulation']}"
            f"{'' if recompute == 'NONE' else ', ' + recompute} | "
            f"{1000 * seconds[chosen]:.1f} ms | "
            f"{percent(seconds[chosen] / best - 1)} | "
            f"{percent(off(way['seconds'], seconds[chosen]))} | "
            f"{spread(times)} | {inside} of {len(told)} | "
            f"{percent(off(way['memory'], truth[chosen]['memory']))} | "
            f"{spread(memory)} | {len(wrong)} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--where", default=",".join(WHERE))
    args = parser.parse_args()
    print("| run | where | ways | fit's choice | a step | choice | time | of "
          "all | in range | memory | of all | judged wrongly |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for where in args.where.split(","):
        for run in args.runs.split(","):
            file = args.results / f"{run}-{where}.json"
            found = (json.loads(file.read_text()) if file.exists() else
                     answer(run, where, args.results))
            print(row(found), flush=True)
    return 0


if __name__ == "__main__":
    reason = hosts_bench.why_not(TRAINER)
    if reason:
        sys.exit(f"fit.py: {reason}")
    sys.exit(main())
