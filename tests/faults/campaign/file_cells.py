# SPDX-License-Identifier: Apache-2.0
"""A bit flips, or the end is missing, in a file that a run reads."""
import gzip
import json
import shutil
import time

from runs import LLAMA, Run, Way
from tries import CELLS, PATIENCE, Try, judge, resumed

STEPS = 12
CHAT = """train_data {{ [plugin/capstan.chat.Config] {{
  path: "{folder}/chats.jsonl{gz}" tokenizer: "{folder}/tokenizer"
  chat_template: "chatml" max_length: 96 packing: BEST_FIT shuffle: true
  validation_fraction: 0.1 }} }}
"""
TOKENS = """train_data {{ [plugin/capstan.text.Config] {{
  path: "{folder}/corpus.tokens" tokenizer {{ folder: "{folder}/tokenizer" }}
  sequence_length: 32 shuffle: true validation_fraction: 0.1 }} }}
"""
PRETRAINED = """model {{ [plugin/capstan.llama.Config] {{
  pretrained: "{folder}/base" }} }}
objective {{ [plugin/capstan.causal_lm.Config] {{}} }}
"""
WINDOWS = """model {{ [plugin/capstan.llada.Config] {{
  vocab_size: 256 d_model: 32 mlp_hidden_size: 88 n_layers: 2 n_heads: 4
  max_sequence_length: 64 rope_theta: 10000 }} }}
objective {{ [plugin/capstan.masked_diffusion.Config] {{ loss: PRETRAIN }} }}
train_data {{ [plugin/capstan.llada_windows.Config] {{
  folder: "{folder}/windows" shuffle: true }} }}
"""


def chats(path):
    """Conversations enough for some hundred packs."""
    lines = []
    for i in range(600):
        lines.append(json.dumps({"messages": [
            {"role": "user", "content": f"What is {i} and {i % 7}?"},
            {"role": "assistant", "content": f"It is {i + i % 7}, or " + "so " * (
                i % 11) + "it seems."}]}))
    path.write_text("\n".join(lines) + "\n")
    with gzip.open(f"{path}.gz", "wb") as out:
        out.write(path.read_bytes())


class Material:
    """Files for the runs of these cells, made once, in a folder of theirs."""

    def __init__(self, shop):
        self.folder = shop.new_folder("files")
        folder = self.folder
        shutil.copytree(shop.tokenizer, folder / "tokenizer")
        chats(folder / "chats.jsonl")
        shutil.copyfile(shop.data, folder / "corpus.txt")
        shop.command("tokenize", f"--tokenizer={folder / 'tokenizer'}",
                     f"--input={folder / 'corpus.txt'}",
                     f"--output={folder / 'corpus'}")
        shop.command("llada-data", f"--text={folder / 'corpus.txt'}",
                     f"--output={folder / 'windows'}", "--sequence_length=48")
        # A model to go on from.
        first = shop.new_folder("base")
        way = Way("ddp", 1, steps=2, parts=LLAMA % 4096 + self.fill(CHAT))
        with Run(shop, way, first) as run:
            if run.wait(PATIENCE) != 0:
                raise SystemExit(f"no base model:\n{run.text()}")
        shutil.copytree(first / "out" / "final", folder / "base")
        shutil.rmtree(first)

    def fill(self, text, gz=""):
        return text.format(folder=self.folder, gz=gz)

    def newest(self, pattern):
        """The newest cached file; the largest of a name's kind would do, too."""
        found = sorted((self.folder / ".capstan").glob(pattern),
                       key=lambda path: path.stat().st_mtime)
        return found[-1]


def material(shop):
    if not hasattr(shop, "material"):
        shop.material = Material(shop)
    return shop.material


def damage(path, random):
    """Flips a bit or cuts the end off; returns what was there."""
    before = path.read_bytes()
    data = bytearray(before)
    if random.random() < 0.5:
        # The first part has what is parsed.
        end = len(data) if random.random() < 0.5 else min(len(data), 512)
        data[random.randrange(end)] ^= 1 << random.randrange(8)
        what = "a bit"
    else:
        del data[random.randrange(len(data)):]
        what = "the end"
    path.write_bytes(data)
    return before, what


def file_cell(name, doc, parts_of, victim_of, cache):
    """A cell. `cache`: what is damaged is made anew, and the run as it should be;
    else the run fails with the file's name or, where a bit can't be told from
    another, trains on it."""
    def fault(shop, random):
        files = material(shop)
        strategy, ranks = random.choice([("ddp", 2), ("zero2", 2), ("fsdp", 2)])
        way = Way(strategy, ranks, steps=STEPS, save_every=0, eval_every=6,
                  parts=parts_of(files))
        shop.reference(way)  # which also makes the caches
        folder = shop.new_folder("damaged")
        victim = victim_of(files)
        before, what = damage(victim, random)
        one = Try(doing=what)
        try:
            with Run(shop, way, folder) as run:
                when = time.monotonic()
                code = run.wait(PATIENCE)
                one.named = time.monotonic() - when
                text = run.text()
        finally:
            if not cache:
                victim.write_bytes(before)
        if cache:
            told = [at - when for at, line in run.lines if victim.name in line]
            one.named = told[0] if told else None
            # What isn't told is seen in the curve.
            one.rightly = code == 0
        else:
            named = (victim.name in text or victim.parent.name in text or
                     "finite" in text or "diverge" in text)
            one.rightly = code == 0 or (code == 1 and named and
                                        "SIG" not in text)
        if not one.rightly:
            one.note = f"{victim.name}: exit code {code}: {text[-500:]}"
        if cache:
            return judge([one], shop, way, run.out, code, text)
        shutil.rmtree(folder)
        folder.mkdir()
        return resumed(shop, way, folder, [one])

    fault.__doc__ = doc
    CELLS[name] = fault


file_cell("rows_cache", "A cache of rows: made anew, the same run.",
          lambda files: LLAMA % 4096 + files.fill(CHAT),
          lambda files: files.newest("*.rows"), True)
file_cell("unpack_cache", "Unpacked data: unpacked anew, the same run.",
          lambda files: LLAMA % 4096 + files.fill(CHAT, ".gz"),
          lambda files: files.newest("*.json"), True)
file_cell("tokens_file", "A token file: named, or a token is another.",
          lambda files: LLAMA % 4096 + files.fill(TOKENS),
          lambda files: files.folder / "corpus.tokens", False)
file_cell("npy_file", "An npy file: named, or a token is another.",
          lambda files: files.fill(WINDOWS),
          lambda files: files.folder / "windows" / "train_data.npy", False)
file_cell("safetensors_file", "A model's weights: named, or a weight is another.",
          lambda files: files.fill(PRETRAINED) + files.fill(CHAT),
          lambda files: files.folder / "base" / "model.safetensors", False)
file_cell("tokenizer_file", "A tokenizer.json: named, or a token is another.",
          lambda files: LLAMA % 4096 + files.fill(CHAT),
          lambda files: files.folder / "tokenizer" / "tokenizer.json", False)
