# SPDX-License-Identifier: Apache-2.0
"""Sums to learn from rewards, after a first lesson by a careless teacher.

make_prompts.py LESSONS TRAIN EVAL [--rows 3000] [--seed 1]

LESSONS has rows {"prompt": "17+5=", "completion": "21"}. Of four answers one is
right and two forget a one: who learns from them knows what an answer is and
gets about a quarter of them right, but gives the wrong one rather than the
right one. TRAIN has the same sums as {"prompt", "answer"}, each once, with what
is right, for a reward to compare with. EVAL has others, of the same numbers,
that are in neither. The same files for the same seed, everywhere.
"""

import argparse
import json

from make_chats import Dice

MOST = 20  # of the numbers that are added


def answer(dice, right):
    """What the teacher says: off by one, two or three, or right."""
    at = dice.below(20)
    if at < 5:
        return right
    if at < 15:
        return right - 1
    return right + 1 + at % 3


def prompt(a, b):
    return "%d+%d=" % (a, b)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons")
    parser.add_argument("train")
    parser.add_argument("eval")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice = Dice(args.seed)
    sums = [(a, b) for a in range(1, MOST + 1) for b in range(1, MOST + 1)]
    sums = dice.some(sums, len(sums))
    # One in ten, whatever the order; never a sum whose numbers, the other way
    # round, are in TRAIN.
    held_out = [s for s in sums if (s[0] * s[1] + s[0] + s[1]) % 10 == 4]
    train = [s for s in sums if s not in held_out]
    lessons = []
    for _ in range(args.rows):
        a, b = dice.one(train)
        lessons.append({"prompt": prompt(a, b),
                        "completion": str(answer(dice, a + b))})
    prompts = [[{"prompt": prompt(a, b), "answer": str(a + b)} for a, b in some]
               for some in (train, held_out)]
    for path, rows in ((args.lessons, lessons), (args.train, prompts[0]),
                       (args.eval, prompts[1])):
        with open(path, "w", encoding="utf-8", newline="\n") as out:
            out.write("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
