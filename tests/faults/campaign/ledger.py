# SPDX-License-Identifier: Apache-2.0
"""What a rank was doing when it was disturbed: its slot of the host's ledger
(cluster/watch/ledger.h), read from the process's own handle of that memory."""
import dataclasses
import os
import struct

# That of the shared memory (base/shared_memory.h), then the ledger's own.
HEADER = 128 + 128
GROUPS, RECENT, COLLECTIVE = 6, 32, 88
GROUP = 24 + RECENT * COLLECTIVE
SLOT = (128 + GROUPS * GROUP + 127) // 128 * 128


@dataclasses.dataclass
class Doing:
    rank: int
    activity: str     # "step", "evaluation", ..; "": between two steps
    step: int
    phase: str        # of the step
    collective: str   # that it waits in, "all-reduce 812"; "": none

    def place(self):
        """One word or two, to count by."""
        if not self.activity:
            return "between two steps"
        return self.phase if self.activity == "step" and self.phase else (
            self.activity)

    def told_in(self, line):
        """Whether the watchdog's words for this rank name its operation."""
        if not self.activity:
            where = "between two steps"
        elif self.activity != "step":
            where = f"in {self.activity} "
        elif not self.phase:
            where = f"in step {self.step} "
        else:
            where = f"in {self.phase} of step {self.step} "
        return where in line and self.collective in line


def text(data):
    return data.split(b"\0")[0].decode(errors="replace")


def waits_in(slot):
    """The collective that the host sees it in, as GroupView::WaitsIn."""
    for group in range(GROUPS):
        at = 128 + group * GROUP
        issued, started, sees_ends, in_order = struct.unpack_from("<QQII", slot, at)
        if not sees_ends:
            continue
        number = max(issued - RECENT + 1, 1)
        if in_order:
            number = max(number, started)
        for number in range(number, started + 1):
            one = at + 24 + number % RECENT * COLLECTIVE
            held, done = struct.unpack_from("<QI", slot, one)
            if not done and number > 0:
                if held != number:
                    return ""
                return f"{text(slot[one + 32:one + 48])} {number}"
    return ""


def doing(pid):
    """A stopped process's; None if it has no ledger yet, or is gone."""
    try:
        folder = f"/proc/{pid}/fd"
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            if "memfd:capstan" not in os.readlink(path):
                continue
            size = os.stat(path).st_size - HEADER
            if size <= 0 or size % SLOT != 0:
                continue  # of the collectives
            with open(path, "rb") as file:
                data = file.read()
            for at in range(HEADER, len(data) - SLOT + 1, SLOT):
                slot = data[at:at + SLOT]
                owner, rank = struct.unpack_from("<ii", slot, 0)
                if owner != pid:
                    continue
                since, = struct.unpack_from("<q", slot, 40)
                step, = struct.unpack_from("<q", slot, 56)
                return Doing(rank, text(slot[16:40]) if since else "", step,
                             text(slot[64:80]), waits_in(slot))
    except OSError:
        pass
    return None
