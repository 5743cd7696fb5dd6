# SPDX-License-Identifier: Apache-2.0
"""Conversations of our own to fine-tune on, a JSON object {"messages"} a line.

make_chats.py TRAIN EVAL [--rows 4000] [--eval_rows 200] [--seed 1]

Greetings, names, sums, counting, lists, and facts of a village that doesn't
exist; one to three exchanges a conversation, some under a system message that
wants short answers. Small enough that a model of five million parameters,
from random weights, learns it in minutes. No conversation of EVAL is in TRAIN,
and the sums of EVAL aren't either: what is right there has been understood.
The same files for the same seed, everywhere: only Random.random() is used, whose
sequence Python promises not to change.
"""

import argparse
import json
import random

SHORT = "Answer with as few words as you can."

NAMES = ("Ada Ben Cora Dan Ella Finn Gwen Hugo Iris Jack Kate Leo Mia Nora Otto "
         "Pia Ron Sue Tom Una Vera Will").split()
# Who lives in the village: where, with which animal, and what is theirs.
PEOPLE = {
    "the miller": ("behind the mill", "horse", "a box of nails"),
    "the sailor": ("near the harbour", "parrot", "a wooden boat"),
    "the queen": ("on the hill", "swan", "a red lantern"),
    "the clerk": ("over the market", "cat", "the last letter"),
    "the captain": ("under the bridge", "dog", "an empty map"),
    "the gardener": ("by the river", "goat", "twelve apples"),
    "the stranger": ("at the inn", "raven", "a clock without hands"),
    "the neighbour": ("by the north gate", "hen", "a grey kite"),
}
THINGS = "apples boats clocks coins horses kites lanterns letters maps nails".split()
COLOURS = "red blue green grey white".split()
MOST = 12  # of the numbers that are added
LAST = 20  # that is counted to


class Dice:
    """Choices of one kind of Python's generator only."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def below(self, n):
        return int(self._random.random() * n)

    def one(self, choices):
        return choices[self.below(len(choices))]

    def some(self, choices, n):
        """n different ones, in any order."""
        left = list(choices)
        return [left.pop(self.below(len(left))) for _ in range(n)]


def listed(words):
    return ", ".join(words[:-1]) + " and " + words[-1]


def sentence(text):
    return text[0].upper() + text[1:]


class Talk:
    """One conversation's exchanges: each a question with a full and a short
    answer."""

    def __init__(self, dice, held_out):
        self._dice = dice
        self._held_out = held_out
        self._name = None

    def _terms(self, allowed=lambda a, b: True):
        """Two numbers of a sum that is of this file alone."""
        while True:
            a, b = self._dice.below(MOST) + 1, self._dice.below(MOST) + 1
            if ((a + 3 * b) % 10 == 0) == self._held_out and allowed(a, b):
                return a, b

    def sum(self):
        a, b = self._terms()
        ask = self._dice.one(("What is %d + %d?", "How much is %d + %d?",
                              "%d + %d?"))
        return ask % (a, b), "%d + %d = %d." % (a, b, a + b), "%d." % (a + b)

    def story(self):
        a, b = self._terms()
        who, what = self._dice.one(list(PEOPLE)), self._dice.one(THINGS)
        ask = "%s has %d %s and gets %d more. How many is that?"
        return (ask % (sentence(who), a, what, b),
                "%d + %d = %d, so %s has %d %s." % (a, b, a + b, who, a + b,
                                                   what), "%d." % (a + b))

    def loss(self):
        a, b = self._terms(lambda a, b: a > b)
        what = self._dice.one(THINGS)
        return ("I have %d %s and lose %d. How many are left?" % (a, what, b),
                "%d - %d = %d, so you have %d %s left." % (a, b, a - b, a - b,
                                                          what), "%d." % (a - b))

    def count(self):
        low = self._dice.below(LAST - 7) + 1
        high = low + 3 + self._dice.below(5)
        numbers = list(range(low, high + 1))
        ask = "Count from %d to %d." % (low, high)
        if self._dice.below(2):
            numbers.reverse()
            ask = "Count down from %d to %d." % (high, low)
        answer = ", ".join(map(str, numbers)) + "."
        return ask, answer, answer

    def list(self):
        words = self._dice.some(THINGS, 2 + self._dice.below(3))
        if self._dice.below(2):
            return ("How many things are these: %s?" % listed(words),
                    "%s: that is %d things." % (sentence(listed(words)),
                                               len(words)),
                    "%d." % len(words))
        return ("Say this the other way round: %s." % listed(words),
                sentence(listed(words[::-1])) + ".",
                sentence(listed(words[::-1])) + ".")

    def colours(self):
        words = self._dice.some(COLOURS, 2)
        return ("Which colour comes first: %s or %s?" % tuple(words),
                "You said %s first." % words[0], "%s." % sentence(words[0]))

    def fact(self):
        who = self._dice.one(list(PEOPLE))
        where, animal, thing = PEOPLE[who]
        return self._dice.one((
            ("Where does %s live?" % who,
             "%s lives %s." % (sentence(who), where), sentence(where) + "."),
            ("Who lives %s?" % where,
             "%s lives %s." % (sentence(who), where), sentence(who) + "."),
            ("Which animal does %s have?" % who,
             "%s has a %s." % (sentence(who), animal), "A %s." % animal),
            ("Whose is the %s?" % animal,
             "The %s is with %s." % (animal, who), sentence(who) + "."),
            ("What does %s own?" % who,
             "%s owns %s." % (sentence(who), thing), sentence(thing) + "."),
        ))

    def small_talk(self):
        return self._dice.one((
            ("Hello!", "Hello! How can I help you?", "Hello!"),
            ("How are you?", "I am well, and glad to help. And you?", "Well."),
            ("Thank you!", "You are welcome!", "Welcome."),
            ("Who are you?", "I am a small model, and I know the village.",
             "A small model."),
            ("Tell me something.", "The market is open, and it is a fine day.",
             "A fine day."),
        ))

    def name(self):
        """Says it, or asks for one that has been said."""
        if self._name is not None:
            name, self._name = self._name, None
            return "What is my name?", "Your name is %s." % name, "%s." % name
        self._name = self._dice.one(NAMES)
        ask = self._dice.one(("My name is %s.", "Hello, I am %s.",
                              "Good morning! I am %s."))
        return (ask % self._name, "Nice to meet you, %s!" % self._name,
                "Hello, %s." % self._name)

    def messages(self):
        kinds = (self.sum, self.sum, self.story, self.loss, self.count,
                 self.list, self.colours, self.fact, self.fact, self.fact,
                 self.small_talk, self.name, self.name)
        short = self._dice.below(5) == 0
        found = [{"role": "system", "content": SHORT}] if short else []
        exchanges = 1 + self._dice.below(3)
        while exchanges > 0:
            # Who has said a name asks for it, mostly.
            kind = self._dice.one(kinds)
            if self._name is not None and self._dice.below(2):
                kind = self.name
            ask, answer, in_short = kind()
            if any(m["content"] == ask for m in found):
                continue
            found.append({"role": "user", "content": ask})
            found.append({"role": "assistant",
                          "content": in_short if short else answer})
            exchanges -= 1
        return found


def lines(dice, rows, held_out, seen):
    """That many different conversations, none of them in `seen`."""
    found = []
    while len(found) < rows:
        line = json.dumps({"messages": Talk(dice, held_out).messages()})
        if line not in seen:
            seen.add(line)
            found.append(line)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("eval")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--eval_rows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice, seen = Dice(args.seed), set()
    # The smaller file first, so that it can hold the plainest ones too.
    held_out = lines(dice, args.eval_rows, True, seen)
    train = lines(dice, args.rows, False, seen)
    for path, found in ((args.train, train), (args.eval, held_out)):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
