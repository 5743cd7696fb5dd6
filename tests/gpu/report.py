#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.md and report.json of a folder that run.sh filled."""
import json
import os
import sys


def read_lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def number(value, scale=1.0, digits=3):
    return "?" if value is None else f"{value * scale:.{digits}g}"


def rows(part, results):
    """A part's table: a list of rows, the first its heads."""
    if part == "kernels":
        return [["kernel", "dtype", "GB/s", "of the card's"]] + [
            [r["kernel"], r["dtype"], number(r.get("bytes_per_second"), 1e-9, 4),
             number(r.get("fraction"), 100) + " %"] for r in results]
    if part == "nccl":
        return [["collective", "GB/s"]] + [
            [r["collective"], number(r["bus_gb_per_second"])] for r in results]
    if part in ("batches", "strategies", "memory"):
        key = "micro_batch" if part == "batches" else "strategy"
        return [[key, "tokens/s", "MFU %", "peak GiB", "loss"]] + [
            [str(r[key])] + speed(r["measured"]) for r in results]
    if part == "workloads":
        return [["workload", "precision", "loss", "on the CPU", "worst",
                 "bound"]] + [
            [r["workload"], r["precision"],
             number(r["compared"]["got"][-1], 1, 6),
             number(r["compared"]["wanted"][-1], 1, 6),
             number(r["compared"]["worst"]), number(r["compared"]["bound"])]
            for r in results]
    if part == "benchmarks":
        return [list(results[0]["row"])] + [
            list(r["row"].values()) for r in results]
    if part == "step":
        table = [["", "step ms", "tokens/s"]]
        for r in results:
            m = r["measured"]
            table.append(["measured", number(m["step_seconds"], 1e3, 4),
                          number(m["tokens_per_second"], 1, 5)])
            for p in (r["predicted"] or {"predictions": []})["predictions"]:
                table.append([p["gpu"] + " predicted",
                              number(p["step_seconds"], 1e3, 4),
                              number(p["tokens_per_second"], 1, 5)])
        return table
    return [["result"]] + [[json.dumps(r)] for r in results]


def speed(m):
    if m is None:
        return ["?"] * 4
    return [number(m["tokens_per_second"], 1, 5), number(m["mfu"], 100),
            number(m["peak_bytes"], 2**-30, 4), number(m["loss"], 1, 6)]


def markdown(table):
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|---" * len(table[0]) + "|")
    return "\n".join(lines)


def main():
    folder = sys.argv[1]
    results = {}
    for line in read_lines(os.path.join(folder, "results.jsonl")):
        try:
            one = json.loads(line)
            results.setdefault(one["part"], []).append(one["result"])
        except (ValueError, TypeError, KeyError):
            continue  # a part that was cut off
    parts = [line.split("\t") for line in
             read_lines(os.path.join(folder, "parts.tsv"))]
    text = ["# A GPU's first hour", "",
            markdown([["part", "state", "seconds"]] + parts), ""]
    for name, state, _ in parts:
        text += [f"## {name}: {state}", ""]
        if name in results:
            text += [markdown(rows(name, results[name])), ""]
        output = read_lines(os.path.join(folder, name + ".txt"))
        shown = output if name == "machine" else output[-(
            30 if state.startswith("failed") else 3):]
        text += ["```"] + shown + ["```", ""]
    with open(os.path.join(folder, "report.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(text))
    with open(os.path.join(folder, "report.json"), "w",
              encoding="utf-8") as file:
        json.dump({"parts": [dict(zip(("name", "state", "seconds"), part))
                             for part in parts], "results": results}, file,
                  indent=1)


if __name__ == "__main__":
    main()
