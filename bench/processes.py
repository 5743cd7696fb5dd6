# SPDX-License-Identifier: Apache-2.0
"""Running a command so that nothing of it outlives it.

torchrun starts its ranks in sessions of their own, and a compiler pool does so
too: ending a process group isn't enough. While a command runs, this process
therefore adopts its orphans (Linux's "child subreaper"), and afterwards ends
whatever is left.
"""

import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
STDERR_LINES = 15


class RunError(Exception):
    """A command failed, or did not end within its limit."""


def descendants(pid):
    """All processes below `pid`, from /proc, zombies too."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # has just ended
            continue
        # "pid (name) state parent ..", where the name may hold anything.
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def end(pids):
    """Kills these processes, and reaps those that are our children."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


@contextlib.contextmanager
def nothing_left_behind():
    """At the end kills whatever was started within and still runs."""
    prctl = ctypes.CDLL(None).prctl
    before = set(descendants(os.getpid()))
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        # Again and again: a process may have started another meanwhile.
        while True:
            left = [p for p in descendants(os.getpid()) if p not in before]
            if not left:
                break
            end(left)
            time.sleep(0.01)
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def run(command, cwd, env, limit_seconds):
    """Runs the command and gives its standard output; RunError if it fails."""
    with tempfile.TemporaryFile("w+") as errors, nothing_left_behind():
        process = subprocess.Popen(command, cwd=cwd, env=env, text=True,
                                   stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=errors,
                                   start_new_session=True)
        try:
            output, _ = process.communicate(timeout=limit_seconds)
            problem = None
            if process.returncode != 0:
                problem = "ended with status %d" % process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            problem = "did not end within %d s" % limit_seconds
        finally:
            process.stdout.close()
        if problem is None:
            return output
        errors.seek(0)
        said = errors.read().strip().splitlines()[-STDERR_LINES:]
    raise RunError("%s: %s\n%s" % (" ".join(command), problem,
                                   "\n".join(said)))
