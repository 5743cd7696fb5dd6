#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How soon `trainer chat` answers: from Enter to the first character.

    python3 bench/chat.py [--weights stored] [--turns 6] [--repeats 3]

Talks through a pseudo-terminal, as a user does, with a model of SmolLM2-135M's
shape with random weights (or --model FOLDER, with its tokenizer): a first
message of --first words, so that there is a history, then short ones. Prints a
table: by turn the median seconds, lowest and highest, from Enter to the first
character of the answer, and from the program's start to its prompt; beside them
what the issue asks, half a second. All cores, as chat uses them.
"""

import argparse
import json
import os
import pathlib
import pty
import select
import sys
import tempfile
import termios
import time

import comparison
import contestants
import generate
import processes
import report

BAR_SECONDS = 0.5
PROMPT = b"> \x1b[0m"
LIMIT_SECONDS = 120
WORDS = "the quick brown fox jumps over the lazy dog and".split()
TURN = "and what does the lazy dog say to that?"


def message(words):
    return " ".join(WORDS[i % len(WORDS)] for i in range(words))


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", default="stored",
                        choices=("stored", "float32", "bfloat16", "int8"))
    parser.add_argument("--dtype", default="bfloat16",
                        choices=("float32", "bfloat16"),
                        help="of the folder that is made")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--first", type=int, default=400,
                        help="words of the first message")
    parser.add_argument("--answer_tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    generate.add_options(parser)
    args = parser.parse_args()
    # A line of a terminal is at most 4,095 bytes.
    if len(message(args.first)) > 4000:
        parser.error("--first: a terminal's line doesn't hold so many words")
    return args


class Terminal:
    """A program on a pseudo-terminal of its own, without echo."""

    def __init__(self, command):
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execv(command[0], command)
        mode = termios.tcgetattr(self._fd)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(self._fd, termios.TCSANOW, mode)
        self._text = b""

    def write(self, line):
        os.write(self._fd, line.encode() + b"\n")

    def read(self):
        """What has come, once something has."""
        ready, _, _ = select.select([self._fd], [], [], LIMIT_SECONDS)
        try:
            text = os.read(self._fd, 1 << 16) if ready else b""
        except OSError:  # it has ended
            text = b""
        if not text:
            raise processes.RunError("chat said no more after %r" % self._text)
        self._text += text
        return text

    def until(self, mark):
        """All up to the mark."""
        while mark not in self._text:
            self.read()
        text, _, self._text = self._text.partition(mark)
        return text

    def close(self):
        os.close(self._fd)
        os.waitpid(self._pid, 0)


def measure(args, trainer, model):
    """Seconds until the program's prompt, and of each turn to its answer."""
    begin = time.perf_counter()
    terminal = Terminal([
        str(trainer), "chat", "--model=%s" % model, "--template=chatml",
        "--greedy", "--weights=" + args.weights,
        "--max_new_tokens=%d" % args.answer_tokens])
    try:
        terminal.until(PROMPT)
        start, seconds = time.perf_counter() - begin, []
        first = message(args.first)
        for turn in range(args.turns):
            begin = time.perf_counter()
            terminal.write(first if turn == 0 else TURN)
            terminal.read()
            seconds.append(time.perf_counter() - begin)
            terminal.until(PROMPT)
    finally:
        terminal.close()
    return start, seconds


def table(starts, turns):
    """turns: by round, the seconds of each turn."""
    def line(name, values, bar):
        spread = comparison.spread(values)
        return [name, *("%.3f" % spread[k]
                        for k in ("median", "lowest", "highest")),
                "" if not bar else "yes" if spread["median"] <= bar else "no"]
    lines = [line("start to prompt", starts, None)]
    lines += [line("turn %d" % (i + 1), values, BAR_SECONDS)
              for i, values in enumerate(zip(*turns))]
    return report.markdown_table(
        ["seconds", "median", "lowest", "highest",
         "within %g s" % BAR_SECONDS], lines)


def main():
    args = parse()
    if args.trainer is None:
        contestants.ensure_trainer()
    trainer = (args.trainer or contestants.TRAINER).resolve()
    starts, turns = [], []
    with tempfile.TemporaryDirectory(prefix="capstan_bench_") as folder:
        model = args.model
        if model is None:
            python = args.python or contestants.ensure_peer(
                packages=generate.PACKAGES)
            model = generate.make_model(python, pathlib.Path(folder, "model"),
                                        args.dtype)
        for _ in range(args.repeats):
            start, seconds = measure(args, trainer, model)
            starts.append(start)
            turns.append(seconds)
            print(json.dumps({"start": start, "turns": seconds}),
                  file=sys.stderr)
    print(table(starts, turns), end="")


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
