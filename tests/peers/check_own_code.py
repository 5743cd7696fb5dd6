#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a model that brings its own code along still does after a run.

    python3 tests/peers/check_own_code.py

A LLaDA folder whose config.json has an auto_map (the code is own_code/, written
for this check) is fine-tuned for a few steps, fully and by an adapter that is
then merged; each folder that comes out must open in transformers with
trust_remote_code, and with nothing of the first folder at hand, and give our
logits within 1e-5, which aren't the first folder's.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from check_folders import HERE, IN_PEER, ROOT, Folder, new_parser, run_in_peer

BASE = ROOT / "tests/golden/testdata/llada"
CODE = HERE / "own_code"
CONFIG = """
model { [plugin/capstan.llada.Config] { pretrained: "%(base)s" } }
objective { [plugin/capstan.masked_diffusion.Config] {} }
train_data { [plugin/capstan.text.Config] {
  path: "%(text)s" sequence_length: 64 } }
strategy { [plugin/capstan.single.Config] {} }
precision { [plugin/capstan.fp32.Config] {} }
optimizer { [plugin/capstan.adamw.Config] { learning_rate: 1e-2 } }
batch { micro_batch_size: 4 global_batch_size: 4 }
train { max_steps: 3 }
complete: true
launch { processes: 1 }
output_dir: "%(output)s"
"""


def trainer(program, *args):
    done = subprocess.run([str(program), *map(str, args)], text=True,
                          capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit("trainer %s: %s" % (args[0], done.stderr))
    return done.stdout


def make_base(folder):
    shutil.copytree(BASE, folder)
    for code in CODE.glob("*.py"):
        shutil.copy(code, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_llada.LLaDAConfig",
        "AutoModel": "modeling_llada.LLaDAModelLM",
        "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
    }
    path.write_text(json.dumps(config))


def make_folders(program, base, root):
    """A whole model's folder and a merged one, trained from `base`."""
    for name, more in (("whole", ""), ("adapter", "adapter { lora {} }")):
        config = root / (name + ".pbtxt")
        config.write_text(more + CONFIG % {
            "base": base, "output": root / name,
            "text": ROOT / "tests/testdata/corpus.txt"})
        out = trainer(program, "--config=%s" % config)
        if name == "whole":
            print(next(line for line in out.splitlines() if ".py" in line))
    trainer(program, "merge", "--model=%s" % base,
            "--adapter=%s" % (root / "adapter"), "--output=%s" % (root / "merged"))
    return [root / "whole/final", root / "merged"]


def main():
    parser = new_parser(__doc__)
    parser.add_argument("--trainer", type=pathlib.Path,
                        default=ROOT / "bazel-bin/trainer/trainer")
    args = parser.parse_args()
    if IN_PEER not in os.environ:
        run_in_peer(args)
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        # Where transformers keeps copies of such code.
        os.environ["HF_MODULES_CACHE"] = str(root / "modules")
        base = root / "base"
        make_base(base)
        folders = make_folders(args.trainer, base, root)
        shutil.rmtree(base)
        well = [Folder(path, args.answers, own_code=True).check()
                for path in folders]
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()
