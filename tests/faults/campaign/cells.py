# SPDX-License-Identifier: Apache-2.0
"""The faults of the campaign. Each cell is a function of (shop, random) that tries its
fault once or several times, and returns a list of Try."""
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from runs import Run, Way, alive, last_step, results, send

# Long beside what is measured here, short beside a person's patience.
PATIENCE = 60
WAYS = [("ddp", 2), ("zero2", 2), ("fsdp", 2), ("ddp", 4), ("zero2", 3),
        ("fsdp", 4)]


@dataclasses.dataclass
class Try:
    """One fault: what was seen of it."""
    named: float = None      # seconds until a line said what had happened
    rightly: bool = False    # the line has the right rank, file, ..
    back: float = None       # seconds until the next step, where the run goes on
    lost: int = 0            # finished steps that were computed again
    same: bool = False       # the curve and weights of the undisturbed run
    note: str = ""           # what is wrong, if anything


CELLS = {}


def cell(function):
    CELLS[function.__name__] = function
    return function


def a_way(random, **more):
    strategy, ranks = random.choice(WAYS)
    return Way(strategy, ranks, **more)


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
    return tries


def resumed(shop, way, folder, tries, train=""):
    """Starts the run again, undisturbed, to its end, and judges it."""
    with Run(shop, way, folder, train) as run:
        code = run.wait(PATIENCE)
        return judge(tries, shop, way, run.out, code, run.text())


@cell
def kill_rank(shop, random):
    """kill -9 of a rank at any moment, again and again; the launcher restarts."""
    way = a_way(random, steps=400)
    folder = shop.new_folder("kill")
    tries = []
    shop.reference(way)
    with Run(shop, way, folder, launch="max_restarts: 1000") as run:
        run.reach(1)
        while run.running():
            time.sleep(random.expovariate(2.0))
            ranks = run.ranks()
            step = last_step(run.out)
            if len(ranks) != way.ranks or step >= way.steps - 20:
                break
            rank = random.randrange(way.ranks)
            when = time.monotonic()
            send(ranks[rank], signal.SIGKILL)
            one = Try()
            seen, line = run.await_line(["starting the ranks again"], when, 20)
            if seen is None:
                if run.running() or run.process.returncode != 0:
                    one.note = "no restart"
                    tries.append(one)
                break
            one.named = seen - when
            one.rightly = f"rank {rank} " in line and "SIGKILL" in line
            # Before the new ranks have done any.
            step = max(step, last_step(run.out))
            after, line = run.await_line(["restarted from step"], when, 20)
            if after is not None:
                one.lost = max(0, step - int(line.split("step")[1].split()[0]
                                             .rstrip(",.;:")))
            back = run.await_step(step + 1, 20)
            one.back = None if back is None else back - when
            tries.append(one)
        code = run.wait(PATIENCE)
        return judge(tries, shop, way, run.out, code, run.text())


@cell
def kill_launcher(shop, random):
    """kill -9 of the launcher: no rank outlives it, and the run can go on."""
    way = a_way(random)
    folder = shop.new_folder("launcher")
    one = Try()
    with Run(shop, way, folder) as run:
        run.reach(random.randrange(1, 100))
        family = run.family()
        when = time.monotonic()
        send(run.process.pid, signal.SIGKILL)
        while any(alive(pid) for pid in family):
            if time.monotonic() > when + 10:
                one.note = "a rank outlives the launcher"
                break
            time.sleep(0.005)
        one.named = time.monotonic() - when
        one.rightly = not one.note
    return resumed(shop, way, folder, [one])


@cell
def stop_rank(shop, random):
    """SIGSTOP of a rank: the watchdog names it and ends the run, which restarts."""
    way = a_way(random)
    folder = shop.new_folder("stopped")
    one = Try()
    with Run(shop, way, folder, train="hang_floor_seconds: 1",
             launch="max_restarts: 3") as run:
        run.reach(random.randrange(20, 100))
        ranks = run.ranks()
        rank = random.randrange(way.ranks)
        when = time.monotonic()
        send(ranks[rank], signal.SIGSTOP)
        step = last_step(run.out)
        seen, line = run.await_line([" is late"], when, 20)
        if seen is not None:
            one.named = seen - when
            one.rightly = f"rank {rank} is late" in line and "stopped" in line
        back = run.await_step(step + 2, 20)
        one.back = None if back is None else back - when
        code = run.wait(PATIENCE)
        return judge([one], shop, way, run.out, code, run.text())


@cell
def pause_and_go_on(shop, random):
    """SIGTSTP and SIGCONT of the launcher: all ranks stop and wake, no alarm."""
    way = a_way(random)
    folder = shop.new_folder("paused")
    one = Try(named=0.0, rightly=True)
    with Run(shop, way, folder, train="hang_floor_seconds: 1") as run:
        run.reach(random.randrange(1, 80))
        send(run.process.pid, signal.SIGTSTP)
        time.sleep(0.3)
        step = last_step(run.out)
        time.sleep(2.5)
        if last_step(run.out) != step:
            one.rightly, one.note = False, "the ranks train on"
        send(run.process.pid, signal.SIGCONT)
        code = run.wait(PATIENCE)
        if "is late" in run.text():
            one.rightly, one.note = False, "a false alarm"
        return judge([one], shop, way, run.out, code, run.text())


def stop_signal(name):
    def fault(shop, random):
        way = a_way(random)
        folder = shop.new_folder(name.lower())
        number = getattr(signal, name)
        one = Try()
        with Run(shop, way, folder) as run:
            run.reach(random.randrange(1, 100))
            target = random.choice([run.process.pid] + run.ranks())
            when = time.monotonic()
            send(target, number)
            code = run.wait(PATIENCE)
            one.named = time.monotonic() - when
            # Of a rank's signal the others know only that there was one; and
            # the last step may have been done.
            codes = [128 + number]
            if target != run.process.pid:
                codes.append(128 + signal.SIGTERM)
            one.rightly = code == 0 or (code in codes and
                                        "stopped after step" in run.text())
            if not one.rightly:
                one.note = f"exit code {code}: {run.text()[-300:]}"
        return resumed(shop, way, folder, [one])

    fault.__doc__ = f"{name} to the launcher or a rank: saved, stopped, goes on."
    return fault


for _name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"):
    CELLS[_name.lower()] = stop_signal(_name)


@cell
def disk_full(shop, random):
    """The disk fills up at any moment, in any writer; later there is room again."""
    if os.geteuid() != 0:
        return None
    way = a_way(random, save_every=3)
    folder = shop.new_folder("full")
    one = Try()
    disk = folder / "out"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk],
                   check=True)
    try:
        with Run(shop, way, folder) as run:
            run.reach(random.randrange(1, 80))
            when = time.monotonic()
            with open(disk / "filler", "wb", buffering=0) as filler:
                while True:
                    try:
                        if not filler.write(b"x" * 65536):
                            break
                    except OSError:
                        break
            code = run.wait(PATIENCE)
            one.named = time.monotonic() - when
            text = run.text()
            one.rightly = code == 1 and "No space left" in text
            if not one.rightly:
                one.note = f"exit code {code}: {text[-500:]}"
        (disk / "filler").unlink()
        return resumed(shop, way, folder, [one])
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


@cell
def damaged_checkpoint(shop, random):
    """A bit flips, or an end is missing, in a file of the newest checkpoint."""
    way = a_way(random, steps=60, save_every=10)
    folder = shop.new_folder("damaged")
    one = Try()
    with Run(shop, way, folder) as run:
        run.reach(random.randrange(31, 50))
        send(run.process.pid, signal.SIGTERM)
        run.wait(PATIENCE)
        newest = max((run.out / "checkpoints").glob("step-*"))
    victim = random.choice(sorted(newest.iterdir()))
    bytes_ = bytearray(victim.read_bytes())
    if random.random() < 0.5:
        bytes_[random.randrange(len(bytes_))] ^= 1 << random.randrange(8)
    else:
        del bytes_[random.randrange(len(bytes_)):]
    victim.write_bytes(bytes_)
    with Run(shop, way, folder) as run:
        when = time.monotonic()
        code = run.wait(PATIENCE)
        for seen, line in run.lines:
            if newest.name in line and "step-" in line and "damaged" in line:
                one.named, one.rightly = seen - when, True
        if not one.rightly:
            one.note = f"{victim.name} isn't named: {run.text()[-600:]}"
        return judge([one], shop, way, run.out, code, run.text())


@cell
def data_shrinks(shop, random):
    """The training data are cut while they are read: an error with the file's name."""
    folder = shop.new_folder("shrinks")
    data = folder / "corpus.txt"
    shutil.copyfile(shop.data, data)
    strategy, ranks = random.choice(WAYS)
    way = Way(strategy, ranks, data=data)
    one = Try()
    with Run(shop, way, folder) as run:
        run.reach(random.randrange(1, 100))
        when = time.monotonic()
        os.truncate(data, 4096)
        code = run.wait(PATIENCE)
        one.named = time.monotonic() - when
        text = run.text()
        # What is read already may suffice.
        one.rightly = code == 0 or (code == 1 and "corpus.txt" in text
                                    and "SIGBUS" not in text)
        if not one.rightly:
            one.note = f"exit code {code}: {text[-500:]}"
    shutil.copyfile(shop.data, data)
    return resumed(shop, way, folder, [one])


@cell
def out_of_memory(shop, random):
    """A rank may not have more memory from now on."""
    way = a_way(random)
    folder = shop.new_folder("memory")
    one = Try()
    with Run(shop, way, folder) as run:
        run.reach(random.randrange(1, 20))
        rank = random.randrange(way.ranks)
        when = time.monotonic()
        pid = run.ranks()[rank]
        subprocess.run(["prlimit", f"--pid={pid}", "--as=1048576:1048576"],
                       check=False)
        code = run.wait(PATIENCE)
        one.named = time.monotonic() - when
        text = run.text()
        one.rightly = code == 0 or (f"rank {rank}" in text
                                    and "memory" in text)
        if not one.rightly:
            one.note = f"exit code {code}: {text[-500:]}"
        if code == 0:
            return judge([one], shop, way, run.out, code, text)
    return resumed(shop, way, folder, [one])


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static time_t jump(void) {
  static struct timespec start;
  struct timespec now;
  int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
  real(CLOCK_MONOTONIC, &now);
  if (start.tv_sec == 0) start = now;
  return now.tv_sec - start.tv_sec >= 1 ? atol(getenv("CLOCK_JUMP")) : 0;
}
int clock_gettime(clockid_t id, struct timespec* out) {
  int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(id, out);
  if (result == 0 && id == CLOCK_REALTIME) out->tv_sec += jump();
  return result;
}
int gettimeofday(struct timeval* out, void* zone) {
  int (*real)(struct timeval*, void*) = dlsym(RTLD_NEXT, "gettimeofday");
  const int result = real(out, zone);
  if (result == 0) out->tv_sec += jump();
  return result;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}
"""


@cell
def clock_jump(shop, random):
    """The time of day jumps forward or back by up to ten years."""
    library = shop.folder / "clock.so"
    if not library.exists():
        source = shop.folder / "clock.c"
        source.write_text(CLOCK)
        built = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library,
                                source, "-ldl"], check=False)
        if built.returncode != 0:
            return None
    way = a_way(random, steps=400)
    folder = shop.new_folder("clock")
    jump = random.choice([-1, 1]) * random.randrange(60, 315_000_000)
    one = Try(named=0.0, rightly=True)
    with Run(shop, way, folder, train="hang_floor_seconds: 1",
             env={"LD_PRELOAD": str(library), "CLOCK_JUMP": str(jump)}) as run:
        code = run.wait(PATIENCE)
        if "is late" in run.text():
            one.rightly, one.note = False, "a false alarm"
        return judge([one], shop, way, run.out, code, run.text())


# 32 numbers of float32 between 0.75 and 1.5: a norm's weights.
NORM = re.compile(rb"(?:..[\x40-\xbf]\x3f){32}", re.DOTALL)


def poison(pid):
    """Makes a norm's weight NaN wherever the process holds it."""
    hits = 0
    send(pid, signal.SIGSTOP)
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            where, mode, *_, name = line.split(maxsplit=5) + [""]
            begin, end = (int(word, 16) for word in where.split("-"))
            if mode[:2] != "rw" or name.startswith("/") or end - begin > 1 << 28:
                continue
            try:
                memory.seek(begin)
                held = memory.read(end - begin)
            except OSError:
                continue
            for found in NORM.finditer(held):
                if found.start() % 4 == 0:
                    memory.seek(begin + found.start())
                    memory.write(b"\0\0\xc0\x7f")
                    hits += 1
    send(pid, signal.SIGCONT)
    return hits


@cell
def not_a_number(shop, random):
    """A weight of one rank becomes NaN in its memory: no such weights are saved."""
    way = a_way(random, save_every=5)
    folder = shop.new_folder("nan")
    one = Try()
    with Run(shop, way, folder) as run:
        run.reach(random.randrange(10, 60))
        rank = random.randrange(way.ranks)
        when = time.monotonic()
        if poison(run.ranks()[rank]) == 0:
            return []
        code = run.wait(PATIENCE)
        one.named = time.monotonic() - when
        text = run.text()
        # It may have hit what the next gather replaces.
        one.rightly = code == 0 or (code == 1 and "nan" in text.lower())
        if not one.rightly:
            one.note = f"exit code {code}: {text[-500:]}"
        if "makes no update" in text:
            # A step was skipped, and said so: the curve is another one.
            one.same = one.rightly
            return [one]
        if code == 0:
            return judge([one], shop, way, run.out, code, text)
    return resumed(shop, way, folder, [one])


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

    def start(self, node, shop, way, folder, train="", launch=""):
        own = folder / f"node{node}"
        own.mkdir(exist_ok=True)
        run = Run(shop, way, own, train, launch,
                  flags=["--nodes=2", f"--node_rank={node}",
                         f"--rendezvous={self.ADDRESSES[0]}:29531",
                         "--set", f"output_dir={folder / 'out'}"],
                  before=["ip", "netns", "exec", self.names[node]],
                  env={"CAPSTAN_HOST_ID": self.names[node]})
        run.out = folder / "out"
        return run


def on_two_hosts(disturb, words, train="hang_floor_seconds: 2"):
    """A cell: disturb(hosts, runs) of a run of 2 + 2 ranks. The first host must say
    one of `words` (none: nothing is to happen); then the run is started again."""
    def fault(shop, random):
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return None
        strategy, _ = random.choice(WAYS)
        way = Way(strategy, 2)
        folder = shop.new_folder("hosts")
        one = Try()
        with TwoHosts() as hosts:
            with hosts.start(0, shop, way, folder, train) as first, \
                    hosts.start(1, shop, way, folder, train) as second:
                first.reach(random.randrange(20, 90))
                when = time.monotonic()
                disturb(hosts, (first, second))
                code = first.wait(PATIENCE)
                second.wait(PATIENCE)
                one.named = time.monotonic() - when
                text = first.text()
                if words:
                    one.rightly = (code not in (0, None) and
                                   any(word in text for word in words))
                else:
                    one.rightly = code == 0 and "is late" not in text
                if not one.rightly:
                    one.note = f"exit code {code}: {text[-500:]}"
            four = Way(strategy, 4)
            if code == 0:
                return judge([one], shop, four, folder / "out", code, text)
            return resumed(shop, four, folder, [one])
    return fault


def _kill_host(_, runs):
    for pid in runs[1].family() + [runs[1].process.pid]:
        send(pid, signal.SIGKILL)


def _cut_link(hosts, _):
    hosts.ip("-n", hosts.names[1], "link", "set", hosts.link, "down")


def _slow_link(hosts, _):
    for name in hosts.names:
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev",
                        hosts.link, "root", "tbf", "rate", "20mbit", "burst",
                        "32kbit", "latency", "400ms"], check=True)


CELLS["kill_host"] = on_two_hosts(_kill_host, ["rank 2", "rank 3"])
CELLS["cut_link"] = on_two_hosts(_cut_link, ["doesn't answer", "is late",
                                             "rank 2", "rank 3"])
CELLS["slow_link"] = on_two_hosts(_slow_link, [])


@cell
def port_taken(shop, random):
    """The rendezvous port is in use."""
    import socket
    way = Way("ddp", 2, steps=20)
    folder = shop.new_folder("port")
    one = Try()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        when = time.monotonic()
        with Run(shop, way, folder, flags=["--nodes=2", "--node_rank=0",
                                           f"--rendezvous=127.0.0.1:{port}"]
                 ) as run:
            code = run.wait(PATIENCE)
            one.named = time.monotonic() - when
            one.rightly = code == 1 and str(port) in run.text()
            if not one.rightly:
                one.note = f"exit code {code}: {run.text()[-500:]}"
    return resumed(shop, way, folder, [one])
