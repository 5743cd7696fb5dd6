# SPDX-License-Identifier: Apache-2.0
"""Pairs of answers of our own, one preferred: {"prompt", "chosen", "rejected"}.

make_pairs.py TRAIN EVAL [--rows 1500] [--eval_rows 100] [--seed 1]

Questions about make_chats.py's village. What is preferred is right and a whole
sentence; what is rejected is somebody else's answer, or none. No pair of EVAL
is in TRAIN. The same files for the same seed, everywhere.
"""

import argparse
import json

from make_chats import PEOPLE, Dice, sentence

# Of a person: the question, the answer's beginning, and which of their facts.
ASKS = (
    ("Where does %s live?", "%s lives %s.", 0),
    ("Which animal does %s have?", "%s has a %s.", 1),
    ("What does %s own?", "%s owns %s.", 2),
)
BEFORE = ("", "Please tell me: ", "I forgot. ", "Once more: ", "Quick: ",
          "A question. ", "Do you know it? ", "Say it. ")
NO_ANSWER = ("No idea.", "Ask somebody else.", "Why do you want to know?",
             "I won't say.", "It is late, come again.")


def pair(dice):
    who = dice.one(list(PEOPLE))
    ask, answer, fact = dice.one(ASKS)
    right = answer % (sentence(who), PEOPLE[who][fact])
    other = dice.one([p for p in PEOPLE if p != who])
    wrong = (answer % (sentence(who), PEOPLE[other][fact]) if dice.below(2)
             else dice.one(NO_ANSWER))
    return json.dumps({
        "prompt": [{"role": "user",
                    "content": dice.one(BEFORE) + ask % who}],
        "chosen": [{"role": "assistant", "content": right}],
        "rejected": [{"role": "assistant", "content": wrong}]})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train")
    parser.add_argument("eval")
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--eval_rows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice = Dice(args.seed)
    seen = []
    while len(seen) < args.rows + args.eval_rows:
        line = pair(dice)
        if line not in seen:
            seen.append(line)
    for path, lines in ((args.eval, seen[:args.eval_rows]),
                        (args.train, seen[args.eval_rows:])):
        with open(path, "w", encoding="utf-8", newline="\n") as out:
            out.write("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
