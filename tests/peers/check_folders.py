#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether Hugging Face's tools read folders of ours as we do.

    python3 tests/peers/check_folders.py FOLDER..

A FOLDER is a run's final/, a merged folder or an adapter's. Each must load in
transformers (an adapter in PEFT, on its base) with nothing missing and nothing
left over, and give our logits within 1e-5; its tokenizer our ids and text; its
chat template our text. Prints a line for each check, and ends with 1 if one of
them fails. torch, transformers and peft come from a virtual environment that is
made in tests/peers/.venv the first time, unless --python names an interpreter
that has them.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENV = HERE / ".venv"
ANSWERS = ROOT / "bazel-bin/tests/peers/answers"
IN_PEER = "CAPSTAN_IN_PEER"  # set where the packages are there

LOGIT_BOUND = 1e-5
ROWS, LENGTH = 2, 24  # of token ids

TEXTS = [
    "", " ", "Hello, world!", "  two  spaces  ", "don't we'll I'VE they'd",
    "tabs\tand\nnew\r\nlines\n\n\n  x", "1234567890 3.14 1,000",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m e\u0301", "\u65e5\u672c\u8a9e \u3068 \u6f22\u5b57",
    "\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 ok", "\u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "x" * 300, "\u00a0nbsp\u2003em", "<|im_start|>user\nhi<|im_end|>\n",
    "text<|im_end|>", "<|im_start", "def f(x):\n    return x**2  # ok",
    "\u00bd \u00b2 \u2167 \u0663", "\ufeffbom", "\ufb01 ligature", "a\u0000b",
]
CONVERSATIONS = [
    [("user", "What is 7 + 5?")],
    [("user", "Hello!"), ("assistant", "Hello! How can I help?")],
    [("user", "One."), ("assistant", "Two."), ("user", " Three \n")],
    [("system", "Be brief."), ("user", "Why?")],
    [("system", "Be brief."), ("user", "Why?"), ("assistant", "Because.")],
]


def new_parser(description):
    """What every check here takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", type=pathlib.Path,
                        help="an interpreter with the packages")
    parser.add_argument("--answers", type=pathlib.Path,
                        help="the build's tests/peers/answers, instead of "
                        "building it")
    return parser


def parse():
    parser = new_parser(__doc__)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    return parser.parse_args()


def peer_python(requirements=HERE / "requirements.txt"):
    """An interpreter that has the packages."""
    python = VENV / "bin/python"
    made = VENV / ("made." + requirements.name)
    if not made.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r",
                        str(requirements)], check=True)
        made.touch()
    return python


def peer_environment():
    return dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
                HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")


def build(target):
    subprocess.run([str(ROOT / "bazelw"), "build", target], check=True,
                   cwd=ROOT)


def run_in_peer(args):
    """The running script again, by an interpreter that has the packages."""
    if args.answers is None:
        build("//tests/peers:answers")
    python = args.python or peer_python()
    os.execve(python, [str(python), *sys.argv],
              dict(peer_environment(), **{IN_PEER: "1"}))


def followed(path):
    """With what runs/NAME/latest stands for: a file with a folder's name."""
    for latest in path.parents if path.name != "latest" else (path,):
        if latest.name == "latest" and latest.is_file():
            run = latest.parent / latest.read_text().strip()
            return run / path.relative_to(latest)
    return path


class Folder:
    """One folder in the peers' hands and in ours."""

    def __init__(self, path, answers, own_code=False):
        self._path = followed(path).resolve()
        self._answers = answers or ANSWERS
        self._own_code = own_code  # whether the folder's own code is run
        self._problems = 0

    def _say(self, what, problem=""):
        self._problems += bool(problem)
        print("%s: %s: %s" % (self._path, what, problem or "equal"), flush=True)

    def _ours(self, **questions):
        done = subprocess.run([str(self._answers), str(self._path)], text=True,
                              input=json.dumps(questions), capture_output=True,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return json.loads(done.stdout)

    def _model(self):
        """In transformers, or PEFT; and what is wrong with how it loads."""
        import transformers
        transformers.utils.logging.disable_progress_bar()
        adapter = self._path / "adapter_config.json"
        folder = self._path
        if adapter.exists():
            folder = json.loads(adapter.read_text())["base_model_name_or_path"]
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype="float32", output_loading_info=True,
            trust_remote_code=self._own_code)
        left = {k: v for k, v in info.items() if v}
        if adapter.exists():
            import peft
            from safetensors import safe_open
            with safe_open(str(self._path / "adapter_model.safetensors"), "pt") as f:
                for name in f.keys():  # one with new tokens has more rows
                    if name.endswith(".embed_tokens.weight"):
                        rows = f.get_slice(name).get_shape()[0]
                        if rows > model.config.vocab_size:
                            model.resize_token_embeddings(rows)
            model = peft.PeftModel.from_pretrained(model, str(self._path))
        return model.eval(), left

    def check_logits(self):
        import torch
        model, left = self._model()
        what = "%s's parameters" % type(model).__name__
        self._say(what, "as transformers says: %s" % left if left else "")
        vocab_size = model.get_input_embeddings().weight.shape[0]
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, vocab_size, (ROWS, LENGTH), generator=generator)
        with torch.no_grad():
            theirs = model(input_ids=ids).logits.float()
        ours = torch.tensor(self._ours(ids=ids.tolist())["logits"])
        difference = (ours - theirs).abs().max().item()
        self._say("logits (%.1e apart)" % difference,
                  "" if difference <= LOGIT_BOUND else
                  "more than %g apart" % LOGIT_BOUND)

    def check_tokenizer(self):
        import transformers
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            self._path, trust_remote_code=self._own_code)
        ours = self._ours(texts=TEXTS)
        before = self._problems
        for i, text in enumerate(TEXTS):
            theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
            if theirs != ours["tokens"][i]:
                self._say("tokens of %r" % text, "%s, ours %s" %
                          (theirs, ours["tokens"][i]))
            decoded = tokenizer.decode(theirs,
                                       clean_up_tokenization_spaces=False)
            if decoded != ours["decoded"][i]:
                self._say("text of %s" % theirs, "%r, ours %r" %
                          (decoded, ours["decoded"][i]))
        self._say("tokenizer, %d texts" % len(TEXTS),
                  "not all equal" if self._problems > before else "")
        if tokenizer.chat_template:
            self.check_chat_template(tokenizer)

    def check_chat_template(self, tokenizer):
        conversations = [
            {"messages": [{"role": r, "content": c} for r, c in messages],
             "generation_prompt": prompt}
            for messages in CONVERSATIONS for prompt in (False, True)]
        ours = self._ours(conversations=conversations)["rendered"]
        same = 0
        for conversation, text in zip(conversations, ours):
            theirs = tokenizer.apply_chat_template(
                conversation["messages"], tokenize=False,
                add_generation_prompt=conversation["generation_prompt"])
            same += theirs == text
            if theirs != text:
                self._say("chat template", "%r, ours %r" % (theirs, text))
        self._say("chat template, %d conversations" % len(ours),
                  "" if same == len(ours) else "not all equal")

    def check(self, with_model=True):
        """Whether all is well."""
        checks = [self.check_logits] if with_model else []
        if (self._path / "tokenizer.json").exists():
            checks.append(self.check_tokenizer)
        for check in checks:
            try:
                check()
            except Exception as error:  # of whichever package
                self._say(check.__name__, "%s: %s" % (type(error).__name__,
                                                     error))
        return self._problems == 0


def main():
    args = parse()
    if IN_PEER not in os.environ:
        run_in_peer(args)
    # All of them, whatever the first one says.
    well = [Folder(path, args.answers).check() for path in args.folders]
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()
