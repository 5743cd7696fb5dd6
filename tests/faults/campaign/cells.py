# SPDX-License-Identifier: Apache-2.0
"""Faults of processes, signals, disks and memory. Each cell is a function of (shop,
random) that tries its fault once or several times, and returns a list of Try."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from ledger import doing
from runs import Run, Way, alive, last_step, send
from tries import (CELLS, PATIENCE, WAYS, Try, a_way, cell, judge, resumed, stop,
                   wait_for)


# What a kill may aim at; else it comes at any moment.
PLACES = ["set-up", "catching up", "data", "forward", "backward", "optimizer",
          "step's end", "evaluation", "saving", "the last save", "finishing"]


def aim(pid, place, seconds):
    """Waits until a rank is there, and stops it; says what it does by then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and alive(pid):
        seen = doing(pid)
        if seen is not None and seen.place() == place:
            break
    return stop(pid)


def kill_one(run, way, random):
    """kill -9 of one rank. The Try; None if the run has ended."""
    ranks = run.ranks()
    if len(ranks) != way.ranks:
        return None
    rank = random.randrange(way.ranks)
    pid = ranks[rank]
    place = random.choice(PLACES)
    seen = aim(pid, place, 0.5) if random.random() < 0.6 else stop(pid)
    one = Try(doing=seen.place() if seen else "before the ranks have met")
    if seen is not None:
        rank = seen.rank
    # The others do no other step while one is stopped.
    step = last_step(run.out)
    when = time.monotonic()
    send(pid, signal.SIGKILL)
    line_at, line = run.await_line(["starting the ranks again"], when, 20)
    if line_at is None:
        if not run.running() and run.process.returncode == 0:
            return None
        one.note = f"no restart: {run.text()[-400:]}"
        return one
    one.named = line_at - when
    one.rightly = f"rank {rank} " in line and "SIGKILL" in line
    after, line = run.await_line(["restarted from"], when, 20)
    if after is not None:
        begins = line.split("step")[1].split()[0] if "step" in line else "0"
        one.lost = max(0, step - int(begins.rstrip(",.;:")))
    if step < way.steps - 1:
        back = run.await_step(step + 2, 20)
        one.back = None if back is None else back - when
    return one


@cell
def kill_rank(shop, random):
    """kill -9 of a rank in each phase, again and again; the launcher restarts."""
    way = a_way(random, steps=400)
    folder = shop.new_folder("kill")
    tries = []
    shop.reference(way)
    # The last step seen, and the deaths since: three without a step end a run.
    step, fruitless = 0, 0
    with Run(shop, way, folder, launch="max_restarts: 1000") as run:
        def goes_on():
            return last_step(run.out) > step + 1 or not run.running()

        until = time.monotonic() + 4 * PATIENCE
        while run.running() and time.monotonic() < until:
            early = fruitless < 2 and random.random() < 0.2
            if early:
                time.sleep(random.uniform(0.0, 0.5))
            elif step >= way.steps - 1 or not wait_for(goes_on, PATIENCE):
                break
            else:
                time.sleep(random.expovariate(4.0))
            now = last_step(run.out)
            if now > step + 1:
                fruitless = 0
            one = kill_one(run, way, random)
            if one is None:
                continue
            tries.append(one)
            if one.note:
                break
            step = max(step, last_step(run.out)) if one.back is None else (
                last_step(run.out))
            fruitless += 1
        code = run.wait(PATIENCE)
        return judge(tries, shop, way, run.out, code, run.text())


@cell
def kill_launcher(shop, random):
    """kill -9 of the launcher: no rank outlives it, and the run can go on."""
    way = a_way(random)
    folder = shop.new_folder("launcher")
    one = Try()
    with Run(shop, way, folder) as run:
        if random.random() < 0.7:
            run.reach(random.randrange(1, 120))
        else:
            time.sleep(random.uniform(0.0, 1.0))
        family = run.family()
        seen = doing(random.choice(family)) if family else None
        one.doing = seen.place() if seen else "before the ranks have met"
        when = time.monotonic()
        send(run.process.pid, signal.SIGKILL)
        if not wait_for(lambda: not any(alive(pid) for pid in family), 10):
            one.note = "a rank outlives the launcher"
        one.named = time.monotonic() - when
        one.rightly = not one.note
    return resumed(shop, way, folder, [one])


@cell
def stop_rank(shop, random):
    """SIGSTOP of a rank: the watchdog names it, says in what it is, and ends the
    run, which restarts."""
    way = a_way(random)
    folder = shop.new_folder("stopped")
    one = Try()
    with Run(shop, way, folder, train="hang_floor_seconds: 1",
             launch="max_restarts: 3") as run:
        # The first evaluation's time isn't known: its limit is half an hour.
        run.reach(random.randrange(way.eval_every + 1, 100))
        ranks = run.ranks()
        rank = random.randrange(way.ranks)
        when = time.monotonic()
        seen = stop(ranks[rank])
        step = last_step(run.out)
        at, line = run.await_line([" is late"], when, 20)
        one.doing = seen.place() if seen else ""
        if at is not None:
            one.named = at - when
            one.rightly = (seen is not None and "stopped" in line and
                           f"rank {seen.rank} is late" in line and
                           seen.told_in(line))
        if not one.rightly:
            one.note = f"{seen}: {line}"
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
