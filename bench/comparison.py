# SPDX-License-Identifier: Apache-2.0
"""What is compared, what must be reached, and the arithmetic of both.

A contestant is one trainer on one shape under one strategy. A round runs each
once; a ratio is of two runs of the same round, so that a machine that slows
down slows both.
"""

import statistics
import typing

CAPSTAN, EAGER, COMPILED = "capstan", "eager", "compiled"
SIDES = (CAPSTAN, EAGER, COMPILED)
# What a bf16 row is compared with besides: our own run of the shape in fp32.
OUR_FP32 = "our fp32"
# The end of the name of a shape that a CPU runs in bf16.
BF16 = "-bf16"
# The end of the name of a shape that is trained otherwise than as a causal
# language model with all its weights: as a LLaDA (masked diffusion), and with
# LoRA adapters on a frozen model.
LLADA, LORA = "-llada", "-lora"
# The end of the name of a shape that a CPU runs on one rank of two threads.
THREADS = "-threads"

# Our strategy: PyTorch's of its kind.
PEER_STRATEGIES = {"single": "single", "ddp": "ddp", "zero2": "zero1",
                   "fsdp": "fsdp2"}
PEER_NAMES = {"single": "PyTorch", "ddp": "DDP",
              "zero2": "ZeroRedundancyOptimizer", "fsdp": "FSDP2",
              "packed": "SFTTrainer", "padded": "SFTTrainer"}

# By device and shape: strategies and peers that a run compares by default.
DEFAULTS = {
    "cpu": {
        "tiny": (("ddp",), (EAGER,)),
        "mini": (("ddp", "fsdp"), (EAGER, COMPILED)),
        "smollm2-135m": (("ddp", "zero2", "fsdp"), (EAGER,)),
        "mini-bf16": (("ddp",), (EAGER,)),
        "smollm2-135m-bf16": (("ddp",), (EAGER,)),
        **{shape + method: (("ddp",), (EAGER,))
           for method in (LLADA, LORA)
           for shape in ("mini", "smollm2-135m")},
        **{shape + THREADS: (("single",), (EAGER,))
           for shape in ("mini", "smollm2-135m")},
    },
    "cuda": {
        "smollm2-135m": (("single",), (EAGER, COMPILED)),
        "smollm2-1.7b": (("single",), (EAGER, COMPILED)),
        "qwen2.5-0.5b": (("single",), ()),
        "qwen2.5-1.5b": (("single",), ()),
    },
}


class Figure(typing.NamedTuple):
    """A measured number: its key in a run's JSON, and how it is shown."""
    key: str
    more_is_better: bool
    scale: float = 1.0


FIGURES = {
    "tokens/s": Figure("tokens_per_second", True),
    "of peak FLOP/s": Figure("fraction_of_peak", True),
    "ready s": Figure("ready_seconds", False),
    "peak MB": Figure("peak_memory_bytes", False, 1e-6),
}
# Of a compiled peer neither the start nor, on CPUs, the memory is comparable:
# both hold the compiler's.
COMPILED_FIGURES = {"cpu": ("tokens/s",),
                    "cuda": ("tokens/s", "of peak FLOP/s", "peak MB")}


class Contestant(typing.NamedTuple):
    shape: str
    strategy: str  # by our name
    side: str      # one of SIDES


class Claim(typing.NamedTuple):
    """What the median must reach (bar) and should (aim); either may be None."""
    bar: typing.Optional[float]
    aim: typing.Optional[float] = None


# About the ratio of ours to the peer's, by device, shape, strategy, peer and
# figure.
RATIO_CLAIMS = {
    ("cpu", "tiny", "ddp", EAGER, "tokens/s"): Claim(3.0, 5.0),
    ("cpu", "mini", "ddp", EAGER, "tokens/s"): Claim(1.3, 1.6),
    ("cpu", "mini", "ddp", COMPILED, "tokens/s"): Claim(1.15, 1.3),
    ("cpu", "mini", "fsdp", EAGER, "tokens/s"): Claim(1.9, 2.4),
    ("cpu", "smollm2-135m", "ddp", EAGER, "tokens/s"): Claim(1.3, 1.8),
    # Also beside a busy neighbour.
    ("cpu", "mini-threads", "single", EAGER, "tokens/s"): Claim(1.5),
    ("cpu", "smollm2-135m-threads", "single", EAGER, "tokens/s"): Claim(1.5),
    ("cpu", "smollm2-135m", "fsdp", EAGER, "tokens/s"): Claim(2.2, 2.8),
    ("cpu", "smollm2-135m", "ddp", EAGER, "peak MB"): Claim(0.8, 0.6),
    ("cpu", "smollm2-135m", "zero2", EAGER, "peak MB"): Claim(0.65, 0.5),
    ("cpu", "smollm2-135m", "fsdp", EAGER, "peak MB"): Claim(0.5, 0.4),
    ("cpu", "mini-bf16", "ddp", EAGER, "tokens/s"): Claim(2.2),
    ("cpu", "smollm2-135m-bf16", "ddp", EAGER, "tokens/s"): Claim(2.2),
    ("cpu", "smollm2-135m-bf16", "ddp", OUR_FP32, "tokens/s"): Claim(1.6),
    ("cpu", "smollm2-135m-bf16", "ddp", OUR_FP32, "peak MB"): Claim(0.9),
    ("cuda", "smollm2-135m", "single", EAGER, "tokens/s"): Claim(1.5),
    ("cuda", "smollm2-135m", "single", COMPILED, "tokens/s"): Claim(1.1),
    ("cuda", "smollm2-1.7b", "single", EAGER, "tokens/s"): Claim(1.5),
    ("cuda", "smollm2-1.7b", "single", COMPILED, "tokens/s"): Claim(1.1),
    # sft.py: on CPUs, by how rows are laid out.
    **{("sft", "mini", packing, EAGER, figure): claim
       for packing in ("packed", "padded") for figure, claim in
       (("tokens/s", Claim(1.5)), ("peak MB", Claim(0.4)))},
    **{("sft", family, packing, EAGER, "tokens/s"): Claim(1.5)
       for packing in ("packed", "padded") for family in ("qwen3", "gemma3")},
}
# About our figure itself, by device, shape, strategy, figure. The tokens/s are
# what LLMQ (a C++/CUDA trainer) reaches on an H100.
OWN_CLAIMS = {
    ("cpu", "tiny", "ddp", "ready s"): Claim(0.5),
    ("cpu", "smollm2-135m", "ddp", "ready s"): Claim(2.0),
    ("cuda", "qwen2.5-0.5b", "single", "tokens/s"): Claim(None, 149e3),
    ("cuda", "qwen2.5-1.5b", "single", "tokens/s"): Claim(None, 59e3),
    **{("cuda", shape, "single", "of peak FLOP/s"): Claim(None, 0.5)
       for shape in DEFAULTS["cuda"]},
}


def contestants(device, shapes=None, strategies=None, peers=None):
    """Who runs, those that are compared beside each other.

    None takes the device's defaults, for strategies and peers those of the
    shape.
    """
    found = []
    for shape in shapes or DEFAULTS[device]:
        usual_strategies, usual_peers = DEFAULTS[device][shape]
        against = usual_peers if peers is None else peers
        for strategy in strategies or usual_strategies:
            for side in SIDES:
                if side == CAPSTAN or side in against:
                    found.append(Contestant(shape, strategy, side))
    return found


def in_turn(contestants_, round_):
    """The order of a round: every other one runs backwards, so that who comes
    first has no advantage or disadvantage of it."""
    return list(contestants_)[::-1] if round_ % 2 else list(contestants_)


def spread(values):
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "lowest": min(values),
            "highest": max(values)}


def verdict(value, claim, more_is_better):
    """"aim", "bar" or "no": what of the claim the value reaches; "" if it
    misses the aim and there is no bar."""
    def reaches(limit):
        return limit is not None and (
            value >= limit if more_is_better else value <= limit)
    if reaches(claim.aim):
        return "aim"
    if reaches(claim.bar):
        return "bar"
    return "" if claim.bar is None else "no"


def values_of(measurements, contestant, figure):
    """Values of that figure by round, of the rounds that have it."""
    key = FIGURES[figure].key
    return {m["round"]: m[key] for m in measurements
            if (m["shape"], m["strategy"], m["side"]) == contestant
            and m.get(key) is not None}


def ratios(ours, others):
    """The spread of ratios of the same round; None where no round has both."""
    both = [ours[r] / others[r] for r in ours if others.get(r)]
    return spread(both) if both else None


def different_work(measurements):
    """Whose sides didn't train the same number of parameters, as sentences."""
    counts = {}
    for m in measurements:
        counts.setdefault((m["shape"], m["strategy"]), {})[m["side"]] = (
            m.get("parameters"))
    return ["%s, %s: not the same model: %s" % (shape, strategy, ", ".join(
        "%s has %s parameters" % item for item in sides.items()))
            for (shape, strategy), sides in counts.items()
            if len(set(sides.values())) > 1]


def judge(device, row):
    """Adds bar, aim, what they are about, and whether they are reached."""
    shape, strategy, figure = row["shape"], row["strategy"], row["figure"]
    claim = RATIO_CLAIMS.get((device, shape, strategy, row["peer"], figure))
    about = "ratio"
    if claim is None and row["peer"] not in (COMPILED, OUR_FP32):
        claim = OWN_CLAIMS.get((device, shape, strategy, figure))
        about = "capstan"
    if claim is None or row[about] is None:
        return
    row.update(bar=claim.bar, aim=claim.aim, about=about,
               reached=verdict(row[about]["median"], claim,
                               FIGURES[figure].more_is_better))


def other(contestant, peer):
    """Whom a row compares ours with."""
    if peer == OUR_FP32:
        return contestant._replace(shape=contestant.shape[:-len(BF16)])
    return contestant._replace(side=peer)


def row_of(device, measurements, contestant, peer, figure):
    """One line of the table, our figure beside the peer's (None: alone); None
    if this machine gives no such figure."""
    ours = values_of(measurements, contestant, figure)
    if not ours:
        return None
    row = {"shape": contestant.shape, "strategy": contestant.strategy,
           "peer": peer, "figure": figure, "capstan": spread(ours.values()),
           "pytorch": None, "ratio": None, "of_ddp": None,
           "bar": None, "aim": None, "about": None, "reached": ""}
    if peer is not None:
        theirs = values_of(measurements, other(contestant, peer), figure)
        row["pytorch"] = spread(theirs.values()) if theirs else None
        row["ratio"] = ratios(ours, theirs)
    if contestant.strategy != "ddp":
        row["of_ddp"] = ratios(ours, values_of(
            measurements, contestant._replace(strategy="ddp"), figure))
    judge(device, row)
    return row


def rows(device, who, measurements):
    """The whole table: each of ours beside each of its peers, or alone."""
    table = []
    for contestant in who:
        if contestant.side != CAPSTAN:
            continue
        peers = [s for s in (EAGER, COMPILED) if other(contestant, s) in who]
        if (contestant.shape.endswith(BF16)
                and other(contestant, OUR_FP32) in who):
            peers.append(OUR_FP32)
        for figure in FIGURES:
            shown = [p for p in peers
                     if p != COMPILED or figure in COMPILED_FIGURES[device]]
            for peer in shown or [None]:
                row = row_of(device, measurements, contestant, peer, figure)
                if row is not None:
                    table.append(row)
    return table
