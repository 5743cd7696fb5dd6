# SPDX-License-Identifier: Apache-2.0
"""Sums to learn from rewards, after lessons by a careless teacher.

make_prompts.py LESSONS PROMPTS [--rows 3000] [--seed 1]

LESSONS has rows {"prompt": "7+5=", "completion": "11"}. A fifth of the
answers is right, and half of them forget a one: who learns from them knows what
an answer is, and gives a wrong one rather than the right one.
PROMPTS has the same sums as {"prompt", "answer"}, each once, with what is right,
for a reward to compare with. The same files for the same seed, everywhere.
"""

import argparse
import json

from make_chats import Dice

MOST = 9  # of the numbers that are added


def answer(dice, right):
    """What the teacher says: off by one, two or three, or right."""
    at = dice.below(20)
    if at < 4:
        return right
    if at < 14:
        return right - 1
    return right + 1 + at % 3


def prompt(a, b):
    return "%d+%d=" % (a, b)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons")
    parser.add_argument("prompts")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice = Dice(args.seed)
    sums = [(a, b) for a in range(1, MOST + 1)
            for b in range(1, MOST + 1)]
    lessons = []
    for _ in range(args.rows):
        a, b = dice.one(sums)
        lessons.append({"prompt": prompt(a, b),
                        "completion": str(answer(dice, a + b))})
    prompts = [{"prompt": prompt(a, b), "answer": str(a + b)} for a, b in sums]
    for path, rows in ((args.lessons, lessons), (args.prompts, prompts)):
        with open(path, "w", encoding="utf-8", newline="\n") as out:
            out.write("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
