# SPDX-License-Identifier: Apache-2.0
"""The arithmetic and tables of collect.py."""

import unittest

import collect
from comparison import CAPSTAN


def measurement(round_, side, steps, seconds, cpu_seconds, returns):
    return {"round": round_, "side": side, "steps": steps, "seconds": seconds,
            "cpu_seconds": cpu_seconds, "returns": returns}


class Summary(unittest.TestCase):

    MEASUREMENTS = [
        measurement(0, CAPSTAN, 8000, 0.25, 0.2, [0.5, 2.0]),
        measurement(0, collect.PEER, 8000, 16.0, 8.0, [0.25, 1.0]),
        measurement(1, collect.PEER, 8000, 8.0, 8.0, [0.75, 2.0]),
        measurement(1, CAPSTAN, 8000, 0.5, 0.4, [0.5, 3.0])]

    def test_ratios_are_of_the_same_round(self):
        result = collect.summary(self.MEASUREMENTS)
        self.assertEqual(result["seconds"]["ratio"],
                         {"median": 40, "lowest": 16, "highest": 64})
        self.assertEqual(result["seconds"][CAPSTAN],
                         {"median": 24000, "lowest": 16000, "highest": 32000})
        self.assertEqual(result["cpu_seconds"]["ratio"]["median"], 30)
        self.assertEqual(result["returns"],
                         {CAPSTAN: [0.5, 2.5], collect.PEER: [0.5, 1.5]})

    def test_one_side_alone(self):
        result = collect.summary(self.MEASUREMENTS[:1])
        self.assertIsNone(result["seconds"]["ratio"])
        self.assertIn("32,000", collect.tables(result))

    def test_the_table_judges(self):
        text = collect.tables(collect.summary(self.MEASUREMENTS))
        self.assertIn("40.00x (16.00..64.00) | 20x | bar |", text)
        self.assertIn("| 2 | 2.50 | 1.50 |", text)


if __name__ == "__main__":
    unittest.main()
