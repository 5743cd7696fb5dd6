#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether tokenizers that transformers saves open in ours, with the same ids.

    python3 tests/peers/check_saved_tokenizers.py [--folder=FOLDER]..

Trains a byte-level BPE tokenizer as users do, and has
PreTrainedTokenizerFast.save_pretrained write it: without a limit (which it spells as
an integer of 100 bits), with one, and with a chat template in its config and in a
file of its own. A --folder is somebody's tokenizer, saved anew in the same way. Each must
give transformers' ids and text. Packages, --python and --answers: as for
check_folders.py.
"""

import os
import pathlib
import sys
import tempfile

import check_folders

NO_LIMIT = "1000000000000000019884624838656"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def parse():
    parser = check_folders.new_parser(__doc__)
    parser.add_argument("--folder", action="append", default=[],
                        type=pathlib.Path,
                        help="a tokenizer's, to be saved anew")
    return parser.parse_args()


def trained():
    """A tokenizer of this script's own text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [pathlib.Path(__file__).read_text(), *check_folders.TEXTS],
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=SPECIAL, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def save(folder, template_in_config=True, **settings):
    import transformers
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained(), eos_token=SPECIAL[0], **settings)
    fast.save_pretrained(folder, save_jinja_files=not template_in_config)
    return folder


def saved(args, folder):
    """Folders that transformers wrote."""
    import transformers
    made = {
        "no_limit": {},
        "limit": {"model_max_length": 512},
        "template": {"chat_template": CHATML},
        "template_file": {"chat_template": CHATML, "template_in_config": False},
    }
    for name, settings in made.items():
        yield save(folder / name, **settings)
    for i, source in enumerate(args.folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        tokenizer.save_pretrained(folder / ("saved_%d" % i))
        yield folder / ("saved_%d" % i)


def main():
    args = parse()
    if check_folders.IN_PEER not in os.environ:
        check_folders.run_in_peer(args)
    well = []
    with tempfile.TemporaryDirectory(prefix="capstan_peers_") as folder:
        for path in saved(args, pathlib.Path(folder)):
            if path.name == "no_limit":
                # Else this would no longer check what it is for.
                config = (path / "tokenizer_config.json").read_text()
                assert NO_LIMIT in config, config
            well.append(check_folders.Folder(path, args.answers)
                        .check(with_model=False))
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()
