# SPDX-License-Identifier: Apache-2.0
"""Deaths on two hosts (network namespaces) whose ranks mirror their state in each
other's memory: no finished step is lost, with a host less either."""
import os
import re
import shutil
import signal
import subprocess
import time

from host_cells import TwoHosts
from runs import Way, last_step, results, send
from tries import CELLS, PATIENCE, WAYS, Try, judge

# Of a run that goes on with other sums of the same numbers.
CLOSE = 1e-4
RETURN_SECONDS = 2
LAUNCH = "max_restarts: 1000"


def _without_root():
    return os.geteuid() != 0 or shutil.which("ip") is None


def _start(hosts, shop, way, folder, launch):
    # Checkpoints only at the end: what a restart goes on from is a mirror.
    return [hosts.start(node, shop, way, folder, launch=launch)
            for node in (0, 1)]


def _count_lost(one, run, when, seconds, finished):
    """Fills in the steps that are done again after "restarted from step N"."""
    after, line = run.await_line(["restarted from step"], when, seconds)
    if after is None:
        one.note = f"no restart: {run.text()[-800:]}"
        return False
    step = int(re.search(r"from step (\d+)", line).group(1))
    one.lost = max(0, finished - step)
    return True


def kill_rank_on_hosts(shop, random):
    """kill -9 of a rank of either host at any moment, again and again."""
    if _without_root():
        return None
    strategy, _ = random.choice(WAYS)
    way = Way(strategy, 2, steps=400, save_every=0)
    four = Way(strategy, 4, steps=400, save_every=0)
    folder = shop.new_folder("hosts")
    shop.reference(four)
    tries = []
    with TwoHosts() as hosts:
        first, second = _start(hosts, shop, way, folder, LAUNCH)
        with first, second:
            first.reach(3)
            while first.running() and second.running():
                time.sleep(random.expovariate(2.0))
                node = random.randrange(2)
                run = (first, second)[node]
                ranks = run.ranks()
                step = last_step(run.out)
                if len(ranks) != 2 or step >= way.steps - 20:
                    break
                rank = random.randrange(2)
                when = time.monotonic()
                send(ranks[rank], signal.SIGKILL)
                one = Try()
                tries.append(one)
                seen, line = run.await_line(["starting the ranks again"], when,
                                            20)
                if seen is None:
                    one.note = f"no restart: {run.text()[-800:]}"
                    break
                one.named = seen - when
                one.rightly = (f"rank {2 * node + rank} " in line and
                               "SIGKILL" in line)
                # Before the new ranks have done any.
                step = max(step, last_step(run.out))
                if not _count_lost(one, first, when, 30, step):
                    break
                back = first.await_step(step + 1, 30)
                one.back = None if back is None else back - when
            code = first.wait(PATIENCE)
            second.wait(PATIENCE)
            return judge(tries, shop, four, first.out, code, first.text())


def lose_host(node):
    """A cell: all processes of host `node` are killed and its link goes down; the
    other goes on without it."""
    def fault(shop, random):
        if _without_root():
            return None
        strategy, _ = random.choice(WAYS)
        way = Way(strategy, 2, save_every=0)
        four = Way(strategy, 4, save_every=0)
        folder = shop.new_folder("lost")
        losses, _ = shop.reference(four)
        one = Try()
        launch = (f"{LAUNCH} min_processes: 2 "
                  f"return_seconds: {RETURN_SECONDS}")
        with TwoHosts() as hosts:
            runs = _start(hosts, shop, way, folder, launch)
            with runs[0], runs[1]:
                runs[0].reach(random.randrange(10, 90))
                time.sleep(random.random() / 20)
                left = runs[1 - node]
                pids = subprocess.run(
                    ["ip", "netns", "pids", hosts.names[node]], check=False,
                    capture_output=True, text=True).stdout.split()
                when = time.monotonic()
                for pid in pids:
                    send(int(pid), signal.SIGKILL)
                hosts.ip("-n", hosts.names[node], "link", "set", hosts.link,
                         "down")
                # What is under way may end yet.
                time.sleep(0.1)
                step = last_step(left.out)
                seen, _ = left.await_line([f"going on without host {node}"],
                                          when, 60)
                if seen is None:
                    one.note = f"doesn't go on: {left.text()[-800:]}"
                    return [one]
                one.named = seen - when
                one.rightly = True
                if not _count_lost(one, left, when, 30, step):
                    return [one]
                back = left.await_step(step + 1, 30)
                one.back = None if back is None else back - when
                code = left.wait(PATIENCE)
                if code != 0:
                    one.note = f"exit code {code}: {left.text()[-800:]}"
                    return [one]
        mine, _ = results(folder / "out")
        if isinstance(mine, str) or mine.keys() != losses.keys():
            one.note = "steps are missing or there twice"
        else:
            worst = max(abs(mine[key] - losses[key]) for key in losses)
            one.same = worst < CLOSE
            if not one.same:
                one.note = f"another curve: {worst:.1e}"
        return [one]
    fault.__doc__ = lose_host.__doc__
    return fault


CELLS["kill_rank_on_hosts"] = kill_rank_on_hosts
CELLS["lose_host"] = lose_host(1)
CELLS["lose_first_host"] = lose_host(0)
