# SPDX-License-Identifier: Apache-2.0
"""Faults of hosts and links, on network namespaces: they need root and ip."""
import os
import shutil
import signal
import subprocess
import time

from runs import Run, Way, send
from tries import CELLS, PATIENCE, WAYS, Try, cell, judge, resumed


class TwoHosts:
    """Two network namespaces with a link, one of which runs node 1."""

    ADDRESSES = ("10.213.91.1", "10.213.91.2")

    def __init__(self):
        self.names = [f"camp{os.getpid()}{letter}" for letter in "ab"]
        self.link = f"camp{os.getpid()}"

    def __enter__(self):
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", self.link, "netns", self.names[0], "type", "veth",
                "peer", "name", self.link, "netns", self.names[1])
        for name, address in zip(self.names, self.ADDRESSES):
            self.ip("-n", name, "address", "add", f"{address}/24", "dev",
                    self.link)
            self.ip("-n", name, "link", "set", self.link, "up")
            self.ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            pids = subprocess.run(["ip", "netns", "pids", name], check=False,
                                  capture_output=True, text=True).stdout
            for pid in pids.split():
                send(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], check=False)

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    def start(self, node, shop, way, folder, train="", launch="", keep=1.0):
        """Starts a host's part. It sees a file of its own at way.data, if that is
        set, of which `keep` is there."""
        own = folder / f"node{node}"
        own.mkdir(exist_ok=True)
        before = ["ip", "netns", "exec", self.names[node]]
        if way.data is not None:
            data = own / "corpus.txt"
            shutil.copyfile(way.data, data)
            os.truncate(data, int(keep * data.stat().st_size))
            # In the mount namespace that ip makes for it.
            before += ["sh", "-c", 'mount --bind "$1" "$2"; shift 2; exec "$@"',
                       "sh", data, way.data]
        run = Run(shop, way, own, train, launch,
                  flags=["--nodes=2", f"--node_rank={node}",
                         f"--rendezvous={self.ADDRESSES[0]}:29531",
                         "--set", f"output_dir={folder / 'out'}"],
                  before=before,
                  env={"CAPSTAN_HOST_ID": self.names[node]})
        run.out = folder / "out"
        return run


def data_of_hosts(shop, folder):
    """A path at which each host may see a file of its own."""
    path = folder / "corpus.txt"
    shutil.copyfile(shop.data, path)
    return path


def on_two_hosts(disturb, train="hang_floor_seconds: 2", own_data=False):
    """A cell: a run of 2 + 2 ranks, which disturb(hosts, runs, random) disturbs. It
    returns the run that is to tell of it, and whether its text is right; no run:
    nothing is to happen. Then the run is started again, undisturbed."""
    def fault(shop, random):
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return None
        strategy, _ = random.choice(WAYS)
        folder = shop.new_folder("hosts")
        data = data_of_hosts(shop, folder) if own_data else None
        way = Way(strategy, 2, data=data)
        one = Try(way=f"{strategy}, 2 hosts of 2 ranks")
        with TwoHosts() as hosts:
            runs = [hosts.start(node, shop, way, folder, train)
                    for node in range(2)]
            with runs[0], runs[1]:
                runs[0].reach(random.randrange(20, 90))
                when = time.monotonic()
                teller, is_right = disturb(hosts, runs, random)
                told = runs[0] if teller is None else teller
                code = told.wait(PATIENCE)
                one.named = time.monotonic() - when
                for run in runs:
                    if run is not told:
                        run.wait(PATIENCE)
                text = told.text()
                if teller is not None:
                    one.rightly = code not in (0, None) and is_right(text)
                else:
                    one.rightly = code == 0 and "is late" not in text
                if not one.rightly:
                    one.note = f"exit code {code}: {text[-500:]}"
        four = Way(strategy, 4, data=data)
        if code == 0:
            return judge([one], shop, four, folder / "out", code, text)
        return resumed(shop, four, folder, [one])

    fault.__doc__ = disturb.__doc__
    return fault


def _names(*words):
    return lambda text: any(word in text for word in words)


def _kill_host(_, runs, random):
    """kill -9 of all processes of one of two hosts: the other names its ranks."""
    victim = random.randrange(2)
    for pid in runs[victim].family() + [runs[victim].process.pid]:
        send(pid, signal.SIGKILL)
    ranks = (2 * victim, 2 * victim + 1)
    return runs[1 - victim], _names(*(f"rank {rank}" for rank in ranks))


def _cut_link(hosts, runs, _):
    """The link is down, without a word: the watchdog names the other host."""
    hosts.ip("-n", hosts.names[1], "link", "set", hosts.link, "down")
    return runs[0], _names("doesn't answer", "rank 2", "rank 3", "ranks 2, 3")


def _slow_link(hosts, *_):
    """20 Mbit/s, from a moment on: no alarm, the same result."""
    for name in hosts.names:
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev",
                        hosts.link, "root", "tbf", "rate", "20mbit", "burst",
                        "32kbit", "latency", "400ms"], check=True)
    return None, None


def _out_of_data(_, runs, random):
    """The data of one host end while it reads them: its rank and file are named."""
    victim = random.randrange(2)
    own = runs[victim].out.parent / f"node{victim}" / "corpus.txt"
    os.truncate(own, random.randrange(4096))
    ranks = (2 * victim, 2 * victim + 1)
    return runs[victim], lambda text: "SIGBUS" not in text and (
        "corpus.txt" in text and any(f"rank {rank}" in text for rank in ranks))


CELLS["kill_host"] = on_two_hosts(_kill_host)
CELLS["cut_link"] = on_two_hosts(_cut_link)
CELLS["slow_link"] = on_two_hosts(_slow_link)
CELLS["out_of_data"] = on_two_hosts(_out_of_data, own_data=True)


@cell
def less_data(shop, random):
    """A host whose data file is shorter than the other's: refused, and named."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return None
    strategy, _ = random.choice(WAYS)
    folder = shop.new_folder("hosts")
    data = data_of_hosts(shop, folder)
    one = Try(way=f"{strategy}, 2 hosts of 2 ranks")
    victim = random.randrange(2)
    with TwoHosts() as hosts:
        when = time.monotonic()
        runs = [hosts.start(node, shop, Way(strategy, 2, data=data), folder,
                            keep=random.uniform(0.3, 0.99)
                            if node == victim else 1.0)
                for node in range(2)]
        with runs[0], runs[1]:
            code = runs[0].wait(PATIENCE)
            one.named = time.monotonic() - when
            runs[1].wait(PATIENCE)
            text = runs[0].text() + runs[1].text()
            one.rightly = code == 1 and ("rank 2" in text or "rank 3" in text) and (
                "samples" in text)
            if not one.rightly:
                one.note = f"exit code {code}: {text[-500:]}"
    return resumed(shop, Way(strategy, 4, data=data), folder, [one])
