#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what 8 to 1,024 ranks cost, without a model, and draws it.

    ./bazelw build //bench:thousand //testing/roofline //testing/standin:libraries
    bench/.venv/bin/python bench/thousand.py docs/thousand.svg

Processes of bench/thousand.cc meet, watch, communicate, mirror, restart, save
and load on this machine; a step's collectives on GPUs are of testing/roofline's
run on paper of SmolLM2-135M. Prints tables in Markdown.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS_PER_HOST = 8
PHASES = {"meet": "meet and connect", "watch": "watch for 10 s",
          "step": "4 steps' collectives", "send": "4 mirrors, sent",
          "restore": "restart from mirrors", "save": "save", "load": "load"}
STRATEGIES = ("ddp", "zero2", "fsdp")
COLOURS = ("#2f6f9f", "#d9a441", "#b03030", "#2c8a4b", "#8fb8d8", "#9a9a9a",
           "#7b5ea7")


def run_processes(binary, ranks):
    """Phases by name, and the files and bytes of the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run([binary, str(ranks), str(RANKS_PER_HOST), folder],
                             check=True, stdout=subprocess.PIPE, text=True,
                             timeout=1800).stdout
        files = [p for p in pathlib.Path(folder).rglob("*") if p.is_file()]
        manifest = sum(p.stat().st_size for p in files if p.suffix == ".json")
        phases = {p["phase"]: p for p in map(json.loads, out.splitlines())}
        return phases, {"files": len(files), "manifest": manifest}


def run_on_paper(binary, strategy, ranks):
    """What a rank sends in a step of an optimizer, and in how many
    collectives."""
    config = ROOT / "bench/roofline"
    sets = {"model.config": config / "smollm2_135m.json",
            "strategy": "capstan." + strategy,
            "train_data.sequence_length": 2048, "batch.micro_batch_size": 1,
            "batch.global_batch_size": ranks}
    command = [binary, f"--config={config / 'roofline.pbtxt'}", "--gpu=h100",
               "--json", f"--gpus={ranks}", f"--hosts={ranks // RANKS_PER_HOST}"]
    for field, value in sets.items():
        command += ["--set", f"{field}={value}"]
    found = json.loads(subprocess.run(command, check=True, timeout=600, cwd=ROOT,
                                      stdout=subprocess.PIPE, text=True).stdout)
    collectives = [w for w in found["kernels"] if w["name"].startswith("nccl::")]
    return {"bytes": sum(w["bytes_sent"] for w in collectives),
            "collectives": sum(w["works"] for w in collectives)}


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def mean_and_most(pair, scale=1.0, form="%.3g"):
    return " / ".join(form % (scale * x) for x in pair)


def print_tables(runs, papers):
    sizes = sorted(runs)
    table(["CPU ms of a rank, mean / most"] + [f"{n:,}" for n in sizes],
          [[text] + [mean_and_most(runs[n][0][phase]["cpu"], 1e3)
                     for n in sizes] for phase, text in PHASES.items()])
    table(["seconds, all on two cores"] + [f"{n:,}" for n in sizes],
          [[text] + ["%.3g" % runs[n][0][phase]["seconds"] for n in sizes]
           for phase, text in PHASES.items()])
    rows = []
    for text, name, scale in (("MB of a rank", "private_kib", 1 / 1024),
                              ("sockets", "sockets", 1), ("threads", "threads", 1),
                              ("other open files", "files", 1)):
        rows.append([text + ", mean / most"] +
                    [mean_and_most(runs[n][0]["load"][name], scale)
                     for n in sizes])
    rows.append(["files of a checkpoint; KB of its manifest"] +
                [f"{runs[n][1]['files']:,}; {runs[n][1]['manifest'] / 1e3:,.0f}"
                 for n in sizes])
    table(["held after all"] + [f"{n:,}" for n in sizes], rows)
    table(["on paper: collectives, MB sent a step"] + [f"{n:,}" for n in sizes],
          [[strategy] + [f"{papers[strategy, n]['collectives']}, "
                         f"{papers[strategy, n]['bytes'] / 1e6:,.0f}"
                         for n in sizes] for strategy in STRATEGIES])


def draw(runs, papers, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "thousand"  # the same file each time
    plt.rcParams["svg.fonttype"] = "none"
    sizes = sorted(runs)
    figure, panels = plt.subplots(2, 2, figsize=(11, 8))

    def phases(which):
        return [(text, "-", [1e3 * runs[n][0][phase]["cpu"][which]
                             for n in sizes])
                for phase, text in PHASES.items()]

    def held(text, name, scale=1.0):
        return [(f"{text}, {of}", line,
                 [scale * runs[n][0]["load"][name][which] for n in sizes])
                for which, (of, line) in enumerate((("mean", "-"),
                                                    ("most", "--")))]

    def on_paper(text, name, line, scale=1.0):
        return [(f"{strategy}, {text}", line,
                 [scale * papers[strategy, n][name] for n in sizes])
                for strategy in STRATEGIES]

    plots = (("CPU milliseconds of a rank, mean", phases(0)),
             ("CPU milliseconds of the busiest rank", phases(1)),
             ("what a rank holds", held("MB", "private_kib", 1 / 1024) +
              held("sockets", "sockets") + held("threads", "threads")),
             ("a step on paper, SmolLM2-135M",
              on_paper("MB sent", "bytes", "-", 1e-6) +
              on_paper("collectives", "collectives", "--")))
    for panel, (title, curves) in zip(panels.flat, plots):
        colours = {}
        for text, line, values in curves:
            name = text.split(",")[0]
            colours.setdefault(name, COLOURS[len(colours)])
            panel.plot(sizes, values, marker="o", markersize=3, label=text,
                       color=colours[name], linestyle=line)
        panel.set_title(title, fontsize=10)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(sizes, [f"{n:,}" for n in sizes])
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
        panel.grid(True, color="#e5e5e5")
        panel.legend(fontsize=7)
    for panel in panels[1]:
        panel.set_xlabel(f"ranks, {RANKS_PER_HOST} a host")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture")
    parser.add_argument("--ranks", default="8,16,32,64,128,256,512,1024")
    parser.add_argument("--results", help="keep the figures here, as JSON")
    options = parser.parse_args()
    binaries = ROOT / "bazel-bin"
    runs, papers = {}, {}
    for ranks in map(int, options.ranks.split(",")):
        runs[ranks] = run_processes(binaries / "bench/thousand", ranks)
        for strategy in STRATEGIES:
            papers[strategy, ranks] = run_on_paper(
                binaries / "testing/roofline/roofline", strategy, ranks)
    if options.results:
        with open(options.results, "w") as out:
            json.dump([runs, [[*k, v] for k, v in papers.items()]], out)
    print_tables(runs, papers)
    draw(runs, papers, options.picture)


if __name__ == "__main__":
    main()
