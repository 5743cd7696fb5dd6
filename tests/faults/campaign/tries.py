# SPDX-License-Identifier: Apache-2.0
"""What all cells share: a Try, and its comparison with an undisturbed run."""
import dataclasses
import signal
import time

from ledger import doing
from runs import Run, Way, at_rest, results, send

# Long beside what is measured here, short beside a person's patience.
PATIENCE = 60
WAYS = [("ddp", 2), ("zero2", 2), ("fsdp", 2), ("ddp", 4), ("zero2", 3),
        ("fsdp", 4)]


@dataclasses.dataclass
class Try:
    """One fault: what was seen of it."""
    named: float = None      # seconds until a line said what had happened
    rightly: bool = False    # the line has the right rank, operation, file, ..
    back: float = None       # seconds until the next step, where the run goes on
    lost: int = 0            # finished steps that were computed again
    same: bool = False       # the curve and weights of the undisturbed run
    note: str = ""           # what is wrong, if anything
    way: str = ""            # how the run trained: "fsdp, 4 ranks"
    doing: str = ""          # what the victim did at that moment


CELLS = {}


def cell(function):
    CELLS[function.__name__] = function
    return function


def a_way(random, **more):
    strategy, ranks = random.choice(WAYS)
    return Way(strategy, ranks, **more)


def stop(pid):
    """Stops a process, and says what it is doing: None if that can't be seen."""
    send(pid, signal.SIGSTOP)
    # A thread at work stops when it is next interrupted.
    wait_for(lambda: at_rest(pid), 1)
    return doing(pid)


def judge(tries, shop, way, output_dir, code, text):
    """Compares a run that has ended with the undisturbed one, for its tries."""
    note = ""
    if code != 0:
        note = f"exit code {code}: {text[-800:]}"
    else:
        losses, weights = results(output_dir)
        wanted, sha = shop.reference(way)
        if losses != wanted:
            note = f"another curve: {losses if isinstance(losses, str) else ''}"
        elif weights != sha:
            note = "other weights"
    for one in tries:
        one.same = not note
        one.note = one.note or note
        one.way = one.way or f"{way.strategy}, {way.ranks} ranks"
    return tries


def resumed(shop, way, folder, tries, train=""):
    """Starts the run again, undisturbed, to its end, and judges it."""
    with Run(shop, way, folder, train) as run:
        code = run.wait(PATIENCE)
        return judge(tries, shop, way, run.out, code, run.text())


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
