# SPDX-License-Identifier: Apache-2.0
import unittest

import hosts_bench

TABLE = """\
| shm+gloo | 4 | 0 | 1,000 times 8 numbers | 90.000 | 120.000 | 0.00 |
| shm+gloo | 4 | 0.00390625 | all-reduce | 0.500 | 1.200 | 0.01 |
| shm+gloo | 4 | 64 | all-reduce | 600.000 | 700.000 | 0.11 |
| shm+gloo | 4 | 64 | broadcast | 560.000 | 700.000 | 0.11 |
"""


class HostsBenchTest(unittest.TestCase):
    def test_parses_the_table(self):
        self.assertEqual(
            hosts_bench.parse(TABLE),
            {(0.00390625, "all-reduce"): 0.5, (64.0, "all-reduce"): 600.0})

    def test_compares_what_both_measured(self):
        ours = {(0.00390625, "all-reduce"): 0.5, (64.0, "all-gather"): 3.0}
        flat = {(0.00390625, "all-reduce"): 1.0}
        self.assertEqual(hosts_bench.rows([ours], [flat]),
                         ["4 KiB | all-reduce | 0.50 | 1.00 | 2.0"])

    def test_tells_how_far_runs_differ(self):
        key = (4.0, "all-reduce bf16")
        self.assertEqual(
            hosts_bench.rows([{key: 2.0}, {key: 1.0}, {key: 4.0}],
                             [{key: 6.0}, {key: 4.0}, {key: 4.0}]),
            ["4 MiB | all-reduce bf16 | 2.00 (1.00..4.00) | "
             "4.00 (4.00..6.00) | 3.0 (1.0..4.0)"])

    def test_hosts_have_addresses_of_one_network(self):
        self.assertEqual(hosts_bench.address(0), "10.201.77.1")
        self.assertEqual(hosts_bench.address(3), "10.201.77.4")


if __name__ == "__main__":
    unittest.main()
