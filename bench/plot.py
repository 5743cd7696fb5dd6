# SPDX-License-Identifier: Apache-2.0
"""Draws results.json of bench/compare.py: ratios, and where our step goes.

    bench/.venv/bin/python bench/plot.py results.json ratios.png
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.lines as lines
import matplotlib.pyplot as plt

import comparison

COLOURS = {comparison.EAGER: "#2f6f9f", comparison.COMPILED: "#8fb8d8",
           comparison.OUR_FP32: "#9a9a9a"}
NAMES = {comparison.EAGER: "eager PyTorch",
         comparison.COMPILED: "compiled PyTorch",
         comparison.OUR_FP32: "our fp32"}
BAR_COLOUR, AIM_COLOUR = "#b03030", "#2c8a4b"
PHASES = {"data": "#9a9a9a", "forward": "#2f6f9f", "backward": "#8fb8d8",
          "communication exposed": "#b03030", "optimizer": "#d9a441",
          "rest": "#dddddd"}
DARK_PHASES = ("forward", "communication exposed")
PANELS = (("tokens/s", "tokens/s, ours over the other's", "more is better"),
          ("peak MB", "peak memory, ours over the other's", "less is better"))


def groups_of(rows):
    """Rows by shape and strategy, in their order."""
    groups = {}
    for row in rows:
        groups.setdefault((row["shape"], row["strategy"]), []).append(row)
    return groups


def draw_bar(axes, x, width, row):
    """One ratio with its spread, its bar and its aim."""
    ratio = row["ratio"]
    axes.bar(x, ratio["median"], 0.9 * width, color=COLOURS[row["peer"]])
    axes.errorbar(x, ratio["median"],
                  [[ratio["median"] - ratio["lowest"]],
                   [ratio["highest"] - ratio["median"]]],
                  color="black", capsize=3, linewidth=1)
    if row["about"] == "ratio":
        for limit, colour in ((row["bar"], BAR_COLOUR),
                              (row["aim"], AIM_COLOUR)):
            if limit is not None:
                axes.hlines(limit, x - width / 2, x + width / 2, color=colour,
                            linewidth=2)
    axes.annotate("%.2f" % ratio["median"], (x, 0), (0, 3),
                  textcoords="offset points", ha="center", va="bottom",
                  color="white", fontsize=8)


def draw_ratios(axes, rows, title, better):
    groups = groups_of(rows)
    for place, group in enumerate(groups.values()):
        width = 0.8 / max(len(group), 2)
        for i, row in enumerate(group):
            draw_bar(axes, place + (i - (len(group) - 1) / 2) * width, width,
                     row)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(groups)),
                    ["%s\n%s" % key for key in groups], fontsize=8)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_title("%s (%s)" % (title, better), fontsize=10)


def legend(figure, rows):
    """Of the colours that the ratios use."""
    entries = [lines.Line2D([], [], color=COLOURS[peer], linewidth=7,
                            label="against " + NAMES[peer])
               for peer in COLOURS if any(r["peer"] == peer for r in rows)]
    entries += [lines.Line2D([], [], color=colour, linewidth=2, label=name)
                for name, colour in (("bar", BAR_COLOUR), ("aim", AIM_COLOUR))]
    entries += [
                lines.Line2D([], [], color="black", linewidth=1,
                             label="lowest to highest round")]
    figure.legend(handles=entries, loc="outside lower center",
                  ncols=len(entries), fontsize=8, frameon=False)


def draw_profiles(axes, profiles):
    """Shares of a step, stacked by phase; the parts of a phase, longest first,
    apart by a white line and named where there is room."""
    for place, entry in enumerate(profiles):
        left = 0.0
        in_step = [r for r in entry["profile"]["rows"] if r["in_step"]]
        for row in in_step:
            share = 100.0 * row["share"]
            axes.barh(place, share, left=left, height=0.7, edgecolor="white",
                      linewidth=0.5, color=PHASES.get(row["phase"], "#777777"))
            if share >= 5.0 and row["name"] != row["phase"]:
                axes.text(left + share / 2, place,
                          row["name"].replace(" ", "\n"), ha="center",
                          va="center", fontsize=7, color="white"
                          if row["phase"] in DARK_PHASES else "black")
            left += share
    axes.set_yticks(range(len(profiles)),
                    ["%s\n%s\n%.4g ms" % (
                        e["shape"], e["strategy"],
                        1e3 * e["profile"]["step_seconds"]) for e in profiles],
                    fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of our step (rank 0)", fontsize=8)
    axes.legend(handles=[lines.Line2D([], [], color=c, linewidth=7, label=p)
                         for p, c in PHASES.items()],
                loc="lower center", bbox_to_anchor=(0.5, 1.0),
                ncols=len(PHASES), fontsize=8, frameon=False)


def draw(results, path):
    panels = []
    for name, title, better in PANELS:
        rows = [r for r in results["rows"]
                if r["figure"] == name and r["ratio"]]
        if rows:
            panels.append((rows, title, better))
    profiles = results["profiles"]
    heights = ([3.2] if panels else []) + (
        [1.0 + 0.7 * len(profiles)] if profiles else [])
    if not heights:
        return  # nothing but our own figures
    figure = plt.figure(figsize=(11, sum(heights) + 1.2), layout="constrained")
    about = results["about"]
    figure.suptitle("Capstan %s, %s, %s, %d rounds, %s" % (
        about["commit"], about["device_name"], about["precision"],
        about["rounds"], about["date"][:10]), fontsize=10)
    grid = figure.subfigures(len(heights), 1, height_ratios=heights,
                             squeeze=False)[:, 0]
    if panels:
        widths = [len(groups_of(rows)) + 0.6 for rows, _, _ in panels]
        axes = grid[0].subplots(1, len(panels), width_ratios=widths,
                                squeeze=False)[0]
        for one, panel in zip(axes, panels):
            draw_ratios(one, *panel)
        legend(grid[0], [r for rows, _, _ in panels for r in rows])
    if profiles:
        draw_profiles(grid[-1].subplots(), profiles)
    figure.savefig(path, dpi=150)


def main():
    with open(sys.argv[1]) as file:
        draw(json.load(file), sys.argv[2])


main()
