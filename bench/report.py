# SPDX-License-Identifier: Apache-2.0
"""The comparison as Markdown: what was run where, the ratios, the profiles."""

import comparison


def number(value, figure):
    """A figure as it is shown, in the unit of its name."""
    value *= comparison.FIGURES[figure].scale
    return "{:,.0f}".format(value) if value >= 1000 else "%.3g" % value


def ratio(spread):
    """"1.30x (1.25..1.36)", or "" for None."""
    return ("%.2fx (%.2f..%.2f)" % (spread["median"], spread["lowest"],
                                    spread["highest"]) if spread else "")


def limits(row):
    """Bar and aim as "1.3x / 1.5x", or of our figure itself "0.5 / -"."""
    if row["about"] is None:
        return ""
    shown = [("-" if limit is None else "%gx" % limit
              if row["about"] == "ratio" else "{:,g}".format(limit))
             for limit in (row["bar"], row["aim"])]
    return " / ".join(shown)


def against(row):
    """"ddp / DDP compiled", "single"."""
    if row["peer"] is None:
        return row["strategy"]
    if row["peer"] == comparison.OUR_FP32:
        return "%s / %s" % (row["strategy"], row["peer"])
    name = "%s / %s" % (row["strategy"],
                        comparison.PEER_NAMES[row["strategy"]])
    return name if row["peer"] == comparison.EAGER else name + ", compiled"


def markdown_table(header, lines):
    texts = ["| %s |" % " | ".join(line)
             for line in [header, ["---"] * len(header), *lines]]
    return "\n".join(texts) + "\n"


def ratio_table(rows):
    """Medians of ours and theirs, the ratios by round, what must be reached."""
    lines = []
    for row in rows:
        theirs = row["pytorch"]
        lines.append([
            row["shape"], against(row), row["figure"],
            number(row["capstan"]["median"], row["figure"]),
            number(theirs["median"], row["figure"]) if theirs else "",
            ratio(row["ratio"]), limits(row), row["reached"],
            "%.2fx" % row["of_ddp"]["median"] if row["of_ddp"] else ""])
    return markdown_table(
        ["shape", "ours / theirs", "figure", "capstan", "theirs",
         "ratio (lowest..highest)", "bar / aim", "reached", "of our ddp"],
        lines)


def profile_table(profile):
    """A step's time by phase and part, longest first within a phase; what runs
    beside the step (communication hidden, say) adds nothing to it."""
    lines = [["**step**", "", "%.3f" % (1e3 * profile["step_seconds"]), "", ""]]
    for row in profile["rows"]:
        lines.append([
            row["phase"] + ("" if row["in_step"] else " (beside)"),
            row["name"], "%.3f" % (1e3 * row["seconds"]),
            "%.1f %%" % (100.0 * row["share"]), "%g" % row["calls"]])
    return markdown_table(["phase", "part", "ms", "share", "calls"], lines)


def heading(about):
    """What was run, on what, by which command."""
    return (
        "`%s`\n\n%s, commit %s. %s, %d cores, load %.1f at the start. %s, "
        "%d rank(s) of one thread, unless a shape's name says otherwise%s; "
        "PyTorch %s, transformers %s, "
        "Python %s. Medians of %d rounds; ratios are of the same round.\n" %
        (about["command"], about["date"], about["commit"],
         about["device_name"], about["cores"], about["load"],
         about["precision"], about["ranks"],
         ", beside %d busy neighbour(s)" % about["neighbours"]
         if about.get("neighbours") else "", about["versions"]["torch"],
         about["versions"]["transformers"], about["versions"]["python"],
         about["rounds"]))


def markdown(results):
    """The whole report of results.json."""
    parts = ["# Capstan and PyTorch on the same work\n",
             heading(results["about"]),
             ratio_table(results["rows"]),
             "![ratios and steps](ratios.png)\n"]
    for entry in results["profiles"]:
        parts += ["## A step of %s, %s (rank 0)\n" % (entry["shape"],
                                                   entry["strategy"]),
                  profile_table(entry["profile"])]
    return "\n".join(parts)
