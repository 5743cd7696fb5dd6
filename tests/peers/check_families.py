#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether transformers reads what we save of each family of decoders.

    python3 tests/peers/check_families.py [FAMILY..]

Trains each model of tests/golden/testdata for two steps, and checks the run's
final/ as check_folders.py does: it must load in transformers with nothing
missing and nothing left over, and give our logits within 1e-5. Ends with 1 if
one of them fails.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from check_folders import IN_PEER, ROOT, Folder, new_parser, run_in_peer

FAMILIES = ["llama31", "llama_biases", "mistral", "qwen2", "qwen3", "qwen3_moe",
            "gemma2", "gemma3", "smollm3", "olmo2", "phi3"]
RUN = """
output_dir: "%s"
model { [plugin/capstan.decoder.Config] { pretrained: "%s" } }
objective { [plugin/capstan.causal_lm.Config] {} }
optimizer { [plugin/capstan.adamw.Config] { learning_rate: 1e-3 } }
train_data { [plugin/capstan.text.Config] {
  path: "%s" tokenizer { bytes {} } sequence_length: 24 } }
precision { [plugin/capstan.fp32.Config] {} }
strategy { [plugin/capstan.single.Config] {} }
batch { micro_batch_size: 2 }
train { max_steps: 2 }
launch { processes: 1 }
complete: true
"""


def train(trainer, folder, scratch):
    """Two steps from `folder`; the run's final/."""
    out = scratch / folder.name
    config = scratch / (folder.name + ".pbtxt")
    config.write_text(RUN % (out, folder, ROOT / "tests/testdata/corpus.txt"))
    subprocess.run([str(trainer), "--config=%s" % config], check=True,
                   stdout=subprocess.DEVNULL)
    return out / "final"


def main():
    parser = new_parser(__doc__)
    parser.add_argument("--trainer", type=pathlib.Path,
                        default=ROOT / "bazel-bin/trainer/trainer")
    parser.add_argument("families", nargs="*", default=FAMILIES)
    args = parser.parse_args()
    if IN_PEER not in os.environ:
        run_in_peer(args)
    with tempfile.TemporaryDirectory() as scratch:
        well = [Folder(train(args.trainer, ROOT / "tests/golden/testdata" / name,
                             pathlib.Path(scratch)), args.answers).check()
                for name in args.families]
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()
