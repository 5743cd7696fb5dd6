# SPDX-License-Identifier: Apache-2.0
"""Runs of the trainer that a fault may meet, and what is left of them."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

LLAMA = """model { [plugin/capstan.llama.Config] {
  vocab_size: %d hidden_size: 32 intermediate_size: 88 num_hidden_layers: 2
  num_attention_heads: 4 num_key_value_heads: 2 max_position_embeddings: 128 } }
objective { [plugin/capstan.causal_lm.Config] {} }
"""
PARTS = LLAMA % 256 + """
train_data { [plugin/capstan.text.Config] {
  path: "@DATA@" tokenizer { bytes {} } sequence_length: 32 shuffle: true
  validation_fraction: 0.1 } }
"""
CONFIG = """
{parts}
strategy {{ [plugin/capstan.{strategy}.Config] {{}} }}
precision {{ [plugin/capstan.fp32.Config] {{}} }}
optimizer {{ [plugin/capstan.adamw.Config] {{ learning_rate: 3e-3 }} }}
batch {{ micro_batch_size: 2 global_batch_size: 24 }}
train {{ max_steps: {steps} seed: 1 max_grad_norm: 1.0 log_every: 1
  eval_every: {eval_every} eval_batches: 2 save_every: {save_every} resume: AUTO
  {train} }}
launch {{ processes: {ranks} {launch} }}
complete: true
"""


class Workshop:
    """Where the runs of a campaign live: a folder of its own, removed at the end."""

    def __init__(self, trainer, corpus, tokenizer):
        self.tokenizer = tokenizer
        self.trainer = os.path.abspath(trainer)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="capstan-campaign."))
        self.data = self.folder / "corpus.txt"
        shutil.copyfile(corpus, self.data)
        self.undisturbed = {}
        self.sessions = set()  # of the processes that runs have started
        self.count = 0

    def close(self):
        for entry in os.listdir("/proc"):
            stat = stat_of(int(entry)) if entry.isdigit() else None
            if stat and int(stat[3]) in self.sessions:
                send(int(entry), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_folder(self, name):
        self.count += 1
        folder = self.folder / f"{name}-{self.count}"
        folder.mkdir()
        return folder

    def command(self, *words):
        """Runs another command of the trainer, which must succeed."""
        done = subprocess.run([self.trainer, *words], check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise SystemExit(f"trainer {' '.join(words)} fails:\n{done.stdout}")

    def config(self, way, folder, train="", launch=""):
        path = folder / "run.pbtxt"
        path.write_text(CONFIG.format(
            parts=way.parts.replace("@DATA@", str(way.data or self.data)),
            strategy=way.strategy, steps=way.steps,
            ranks=way.ranks, eval_every=way.eval_every,
            save_every=way.save_every, train=train, launch=launch))
        return path

    def reference(self, way):
        """What a run that nothing disturbs gives; trained once for each way."""
        key = way.key()
        if key not in self.undisturbed:
            folder = self.new_folder("undisturbed")
            plain = Way(way.strategy, way.ranks, way.steps, way.save_every,
                        way.eval_every, parts=way.parts)
            with Run(self, plain, folder) as run:
                if run.wait(300) != 0:
                    raise SystemExit(f"the undisturbed run fails:\n{run.text()}")
            self.undisturbed[key] = results(folder / "out")
            shutil.rmtree(folder)
        return self.undisturbed[key]


class Way:
    """How a run trains."""

    def __init__(self, strategy="ddp", ranks=2, steps=120, save_every=25,
                 eval_every=40, data=None, parts=PARTS):
        self.strategy = strategy
        self.ranks = ranks
        self.steps = steps
        self.save_every = save_every
        self.eval_every = eval_every
        self.data = data
        # The config's model, objective and data; @DATA@: data's path.
        self.parts = parts

    def key(self):
        return (self.strategy, self.ranks, self.steps, self.eval_every, self.parts)


def results(output_dir):
    """The losses by step, and the final weights' sha256."""
    losses = {}
    for line in (output_dir / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        for name in ("loss", "eval_loss"):
            if name in values:
                key = (values["step"], name)
                if key in losses:
                    return f"step {values['step']} has two lines", None
                losses[key] = values[name]
    weights = (output_dir / "final" / "model.safetensors").read_bytes()
    return losses, hashlib.sha256(weights).hexdigest()


def last_step(output_dir):
    """The last step in metrics.jsonl, 0 if none."""
    try:
        with open(output_dir / "metrics.jsonl", "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        found = re.search(r'"step": ?(\d+)', line)
        if found and line.endswith("}"):
            return int(found.group(1))
    return 0


class Run:
    """A started trainer, whose lines are kept with the time at which they came."""

    def __init__(self, shop, way, folder, train="", launch="", flags=(),
                 before=(), env=None):
        self.shop = shop
        self.out = folder / "out"
        config = shop.config(way, folder, train, launch)
        self.lines = []
        self.process = subprocess.Popen(
            list(before) + [shop.trainer, f"--config={config}",
                            "--set", f"output_dir={self.out}"] + list(flags),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
            env=dict(os.environ, OMP_NUM_THREADS="1", **(env or {})))
        shop.sessions.add(self.process.pid)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.family() + [self.process.pid]:
            send(pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(5)

    def _read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def text(self):
        return "\n".join(line for _, line in self.lines)

    def wait(self, seconds):
        """Its exit code; None if it still runs then."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self.reader.join(5)
        return code

    def running(self):
        return self.process.poll() is None

    def family(self):
        """All processes below it."""
        children = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                children.setdefault(parent(int(entry)), []).append(int(entry))
        found, open_ = [], [self.process.pid]
        while open_:
            below = children.get(open_.pop(), [])
            found += below
            open_ += below
        return found

    def ranks(self):
        """The ranks' processes, by rank: the launcher forks them in order."""
        return sorted(pid for pid in self.family()
                      if parent(pid) == self.process.pid)

    def await_line(self, words, since, seconds):
        """The time and text of the first line from `since` on with all words."""
        end = time.monotonic() + seconds
        at = 0
        while True:
            alive = self.running() or self.reader.is_alive()
            while at < len(self.lines):
                when, line = self.lines[at]
                at += 1
                if when >= since and all(word in line for word in words):
                    return when, line
            if time.monotonic() > end or not alive:
                return None, None
            time.sleep(0.005)

    def reach(self, step, seconds=60):
        """Waits for a step, which a run that nothing has disturbed must do."""
        if self.await_step(step, seconds) is None:
            raise SystemExit(f"step {step} isn't reached:\n{self.text()}")

    def await_step(self, step, seconds):
        """The time at which metrics.jsonl had this step; None if too late."""
        end = time.monotonic() + seconds
        while last_step(self.out) < step:
            if time.monotonic() > end or not self.running():
                return None
            time.sleep(0.005)
        return time.monotonic()


def send(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass


def stat_of(pid):
    """State and parent of a process; None if it is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def parent(pid):
    stat = stat_of(pid)
    return int(stat[1]) if stat else -1


def alive(pid):
    stat = stat_of(pid)
    return stat is not None and stat[0] != "Z"


def at_rest(pid):
    """Whether all threads of a process are stopped, or it is gone."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            text = pathlib.Path(f"/proc/{pid}/task/{task}/stat").read_text()
            if text.rpartition(")")[2].split()[0] not in "TtZX":
                return False
    except OSError:
        pass
    return True


def left_over():
    """What runs must not leave on the machine."""
    found = []
    for folder in ("/dev/shm", "/tmp"):
        found += [f"{folder}/{name}" for name in os.listdir(folder)
                  if "capstan" in name and not name.startswith("capstan-")]
    return found
