#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives across hosts, ours beside flat Gloo, on links of a chosen speed.

    ./bazelw build -c opt //bench:collectives
    sudo bench/hosts_bench.py [--hosts=2,4] [--ranks=2] [--gbit=1,10]

Each host is a network namespace with one link to a switch (a bridge in a
namespace of its own); netem limits each direction of each link to --gbit and
delays it by --delay_us, or, where the kernel has no netem, tbf limits it. Ranks
are on consecutive hosts, --ranks on each. Prints a table, in Markdown:
milliseconds, and how many times faster ours is. Of --repeats runs of each, ours
and Gloo's in turn, the median, and from lowest to highest.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).absolute().parent.parent
PORT = 29533
LIMIT_SECONDS = 1800
COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather",
               "all-reduce bf16", "reduce-scatter bf16")


def run(command):
    subprocess.run(command, check=True, capture_output=True, text=True)


def address(host):
    return f"10.201.77.{host + 1}"


class Hosts:
    """Network namespaces around a switch; a context manager removes them."""

    def __init__(self, count, gbit, delay_us):
        self.count, self.gbit, self.delay_us = count, gbit, delay_us
        self.prefix = f"capstan{os.getpid()}"
        self.names = []
        self.delayed = True  # there is netem

    def name(self, host):
        return f"{self.prefix}h{host}"

    def namespace(self, name):
        run(["ip", "netns", "add", name])
        self.names.append(name)
        run(["ip", "-n", name, "link", "set", "lo", "up"])
        return name

    def shape(self, namespace, device):
        add = ["tc", "-n", namespace, "qdisc", "add", "dev", device, "root"]
        rate = ["rate", f"{self.gbit}gbit"]
        try:
            # The queue holds what is on its way: a default of 1,000 packets is
            # less than 10 Gbit/s can have under way.
            run(add + ["netem", "limit", "100000", "delay",
                       f"{self.delay_us}us"] + rate)
        except subprocess.CalledProcessError:
            run(add + ["tbf"] + rate + ["burst", "128k", "latency", "50ms"])
            self.delayed = False

    def __enter__(self):
        try:
            switch = self.namespace(f"{self.prefix}s")
            run(["ip", "-n", switch, "link", "add", "br0", "type", "bridge"])
            run(["ip", "-n", switch, "link", "set", "br0", "up"])
            for host in range(self.count):
                name = self.namespace(self.name(host))
                port = f"port{host}"
                run(["ip", "-n", name, "link", "add", "eth0", "type", "veth",
                     "peer", "name", port, "netns", switch])
                run(["ip", "-n", switch, "link", "set", port, "master", "br0",
                     "up"])
                run(["ip", "-n", name, "address", "add",
                     f"{address(host)}/24", "dev", "eth0"])
                run(["ip", "-n", name, "link", "set", "eth0", "up"])
                self.shape(name, "eth0")
                self.shape(switch, port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        self.names = []


def rank_environment(hosts, host, ranks=1, local=0, port=PORT):
    """What torchrun tells rank `local` of the `ranks` on `host`."""
    return dict(
        os.environ,
        RANK=str(host * ranks + local),
        WORLD_SIZE=str(hosts.count * ranks),
        LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR=address(0),
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="eth0",
        # One kernel and one name: they would look like one host.
        CAPSTAN_HOST_ID=str(host),
        OMP_NUM_THREADS="1",
    )


def measure(hosts, ranks, binary, sizes, flat):
    """Rank 0's table, of `ranks` ranks on each of `hosts`."""
    processes = []
    with contextlib.ExitStack() as stack:
        for host in range(hosts.count):
            for local in range(ranks):
                environment = rank_environment(hosts, host, ranks, local)
                environment.pop("CAPSTAN_CPU_COLLECTIVES", None)
                if flat:
                    environment["CAPSTAN_CPU_COLLECTIVES"] = "gloo"
                process = subprocess.Popen(
                    ["ip", "netns", "exec", hosts.name(host), binary, "env",
                     sizes],
                    env=environment,
                    stdout=subprocess.PIPE if not processes else
                    subprocess.DEVNULL,
                    text=True,
                )
                stack.callback(process.wait)
                stack.callback(process.kill)
                processes.append(process)
        output, _ = processes[0].communicate(timeout=LIMIT_SECONDS)
        for rank, process in enumerate(processes):
            if process.wait(timeout=60) != 0:
                raise RuntimeError(f"rank {rank} failed")
    return output


def parse(table):
    """{(MiB, collective): milliseconds} of a table of bench/collectives.cc."""
    times = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 7 and cells[3] in COLLECTIVES:
            times[float(cells[2]), cells[3]] = float(cells[4])
    return times


def size_text(mib):
    return f"{mib:g} MiB" if mib >= 1 else f"{mib * 1024:g} KiB"


def spread_text(values, digits):
    """"3.76 (3.70..3.90)"; a single one is itself."""
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def rows(ours, flat):
    """Table rows for what all runs measured: size, collective, times, ratio."""
    found = []
    for mib, name in ours[0]:
        key = (mib, name)
        if not all(key in times for times in ours + flat):
            continue
        mine = [times[key] for times in ours]
        others = [times[key] for times in flat]
        ratios = [b / a for a, b in zip(mine, others)]
        found.append(f"{size_text(mib)} | {name} | {spread_text(mine, 2)} | "
                     f"{spread_text(others, 2)} | {spread_text(ratios, 1)}")
    return found


def why_not(binary):
    """Why nothing can be measured here; "" if it can. Warns of what can't."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"no {tool} (install iproute2)"
    if not os.access(binary, os.X_OK):
        return f"no {binary} (build //bench:collectives, or give --binary)"
    try:
        with Hosts(1, 1, 10) as hosts:
            if not hosts.delayed:
                print("no netem in this kernel: links aren't delayed",
                      file=sys.stderr)
            return ""
    except subprocess.CalledProcessError as e:
        return f"{' '.join(e.cmd)}: {e.stderr.strip()}"


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=numbers, default=[2, 4])
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--gbit", type=numbers, default=[1, 10])
    parser.add_argument("--delay_us", type=int, default=50, help="one way")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sizes", default="4k,64k,512k,4,64",
                        help="in MiB, or KiB with a k")
    parser.add_argument("--binary",
                        default=str(ROOT / "bazel-bin/bench/collectives"))
    flags = parser.parse_args()
    reason = why_not(flags.binary)
    if reason:
        print(f"skipped: {reason}")
        return 0
    print("| Gbit/s | hosts x ranks | size | collective | ours ms | Gloo ms "
          "| times faster |\n|---|---|---|---|---|---|---|", flush=True)
    for gbit in flags.gbit:
        for count in flags.hosts:
            with Hosts(count, gbit, flags.delay_us) as hosts:
                ours, flat = [], []
                for _ in range(flags.repeats):
                    for times, is_flat in ((ours, False), (flat, True)):
                        times.append(parse(measure(
                            hosts, flags.ranks, flags.binary, flags.sizes,
                            is_flat)))
            for row in rows(ours, flat):
                print(f"| {gbit} | {count} x {flags.ranks} | {row} |",
                      flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
