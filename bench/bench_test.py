# SPDX-License-Identifier: Apache-2.0
"""The arithmetic and tables of the comparison; runs leave nothing behind."""

import os
import pathlib
import sys
import tempfile
import time
import unittest

import compare
import comparison
import contestants
import processes
import report
from comparison import CAPSTAN, COMPILED, EAGER, Claim, Contestant


def measurement(round_, shape, strategy, side, **figures):
    return {"round": round_, "shape": shape, "strategy": strategy,
            "side": side, **figures}


def speeds(shape, strategy, side, values):
    return [measurement(i, shape, strategy, side, tokens_per_second=v)
            for i, v in enumerate(values)]


class WhoRuns(unittest.TestCase):

    def test_defaults_hold_all_that_is_claimed(self):
        for device in ("cpu", "cuda"):
            who = comparison.contestants(device)
            claims = [k for k in comparison.RATIO_CLAIMS if k[0] == device]
            self.assertTrue(claims)
            for _, shape, strategy, peer, _ in claims:
                self.assertIn(Contestant(shape, strategy, CAPSTAN), who)
                self.assertIn(Contestant(shape, strategy, peer), who)
            for _, shape, strategy, _ in (
                    k for k in comparison.OWN_CLAIMS if k[0] == device):
                self.assertIn(Contestant(shape, strategy, CAPSTAN), who)

    def test_every_shape_has_sizes_and_work(self):
        for device, shapes in comparison.DEFAULTS.items():
            for shape in shapes:
                self.assertIn(shape, contestants.SHAPES)
                self.assertIn(shape, contestants.WORK[device])

    def test_arguments_replace_the_defaults(self):
        self.assertEqual(
            comparison.contestants("cpu", ["tiny"], ["zero2"],
                                   [EAGER, COMPILED]),
            [Contestant("tiny", "zero2", side)
             for side in (CAPSTAN, EAGER, COMPILED)])
        self.assertEqual(comparison.contestants("cpu", ["tiny"], None, []),
                         [Contestant("tiny", "ddp", CAPSTAN)])

    def test_rounds_alternate(self):
        who = comparison.contestants("cpu")
        self.assertEqual(comparison.in_turn(who, 0), who)
        self.assertEqual(comparison.in_turn(who, 1), who[::-1])
        self.assertEqual(comparison.in_turn(who, 2), who)


class Arithmetic(unittest.TestCase):

    def test_ratios_are_of_the_same_round(self):
        # The second round is half as fast for both: no ratio shows it.
        got = comparison.ratios({0: 300.0, 1: 150.0, 2: 360.0},
                                {0: 100.0, 1: 50.0, 2: 100.0})
        self.assertAlmostEqual(got["median"], 3.0)
        self.assertAlmostEqual(got["lowest"], 3.0)
        self.assertAlmostEqual(got["highest"], 3.6)

    def test_ratios_leave_out_a_round_without_a_peer(self):
        got = comparison.ratios({0: 300.0, 1: 999.0}, {0: 100.0})
        self.assertEqual(got["highest"], 3.0)
        self.assertIsNone(comparison.ratios({0: 1.0}, {1: 1.0}))

    def test_verdict_more_is_better(self):
        for value, expected in ((1.29, "no"), (1.3, "bar"), (1.49, "bar"),
                                (1.5, "aim")):
            self.assertEqual(
                comparison.verdict(value, Claim(1.3, 1.5), True), expected)

    def test_verdict_less_is_better(self):
        for value, expected in ((0.81, "no"), (0.8, "bar"), (0.6, "aim")):
            self.assertEqual(
                comparison.verdict(value, Claim(0.8, 0.6), False), expected)

    def test_verdict_of_half_a_claim(self):
        self.assertEqual(comparison.verdict(0.4, Claim(0.5), False), "bar")
        self.assertEqual(comparison.verdict(0.6, Claim(0.5), False), "no")
        self.assertEqual(comparison.verdict(1.0, Claim(None, 2.0), True), "")
        self.assertEqual(comparison.verdict(2.0, Claim(None, 2.0), True), "aim")

    def test_flops_by_the_formula(self):
        sizes = contestants.Sizes(8, 16, 2, 2, 1, 32)
        self.assertEqual(contestants.flops_per_token(1000, sizes, 10),
                         6 * 1000 + 12 * 2 * 2 * 4 * 10)

    def test_peak_is_only_known_of_listed_hardware(self):
        self.assertEqual(contestants.peak_flops("NVIDIA H100 80GB HBM3"),
                         989e12)
        self.assertIsNone(contestants.peak_flops("NVIDIA H100 PCIe"))


class Table(unittest.TestCase):

    def rows(self, who, measurements, device="cpu"):
        return comparison.rows(device, who, measurements)

    def test_row_against_each_peer(self):
        who = comparison.contestants("cpu", ["mini"])
        table = self.rows(who, speeds("mini", "ddp", CAPSTAN, [6000, 5000]) +
                          speeds("mini", "ddp", EAGER, [4000, 4000]) +
                          speeds("mini", "ddp", COMPILED, [5000, 5000]))
        self.assertEqual([r["peer"] for r in table], [EAGER, COMPILED])
        self.assertEqual(
            report.ratio_table(table).splitlines()[2:],
            ["| mini | ddp / DDP | tokens/s | 5,500 | 4,000 | "
             "1.38x (1.25..1.50) | 1.3x / 1.5x | bar |  |",
             "| mini | ddp / DDP, compiled | tokens/s | 5,500 | 5,000 | "
             "1.10x (1.00..1.20) | 1.15x / 1.3x | no |  |"])

    def test_own_figure_is_judged_beside_the_peer(self):
        who = comparison.contestants("cpu", ["tiny"])
        table = self.rows(who, [
            measurement(0, "tiny", "ddp", CAPSTAN, ready_seconds=0.25),
            measurement(0, "tiny", "ddp", EAGER, ready_seconds=5.0)])
        self.assertEqual(
            report.ratio_table(table).splitlines()[2],
            "| tiny | ddp / DDP | ready s | 0.25 | 5 | 0.05x (0.05..0.05) | "
            "0.5 / - | bar |  |")

    def test_alone_without_peers(self):
        who = comparison.contestants("cuda", ["qwen2.5-0.5b"])
        table = self.rows(who, speeds("qwen2.5-0.5b", "single", CAPSTAN,
                                      [150e3]), "cuda")
        self.assertEqual(
            report.ratio_table(table).splitlines()[2:],
            ["| qwen2.5-0.5b | single | tokens/s | 150,000 |  |  | "
             "- / 149,000 | aim |  |"])

    def test_fine_tuning_by_layout(self):
        who = [Contestant("mini", "packed", side) for side in (CAPSTAN, EAGER)]
        table = self.rows(who, speeds("mini", "packed", CAPSTAN, [3200]) +
                          speeds("mini", "packed", EAGER, [2000]), "sft")
        self.assertEqual(
            report.ratio_table(table).splitlines()[2:],
            ["| mini | packed / SFTTrainer | tokens/s | 3,200 | 2,000 | "
             "1.60x (1.60..1.60) | 1.5x / - | bar |  |"])

    def test_of_our_ddp(self):
        who = comparison.contestants("cpu", ["mini"], ["ddp", "fsdp"], [])
        table = self.rows(who, speeds("mini", "ddp", CAPSTAN, [100.0]) +
                          speeds("mini", "fsdp", CAPSTAN, [90.0]))
        self.assertIsNone(table[0]["of_ddp"])
        self.assertAlmostEqual(table[1]["of_ddp"]["median"], 0.9)

    def test_profile(self):
        text = report.profile_table({"step_seconds": 0.2, "steps": [5], "rows": [
            {"phase": "forward", "name": "attention", "seconds": 0.05,
             "calls": 6, "share": 0.25, "in_step": True},
            {"phase": "communication hidden", "name": "all-reduce",
             "seconds": 0.01, "calls": 2, "share": 0.05, "in_step": False}]})
        self.assertEqual(text.splitlines()[2:], [
            "| **step** |  | 200.000 |  |  |",
            "| forward | attention | 50.000 | 25.0 % | 6 |",
            "| communication hidden (beside) | all-reduce | 10.000 | 5.0 % | "
            "2 |"])


class FakeRunner:
    device = "cuda"

    def measure(self, contestant):
        # As summary.json, whose strategy is the plugin's name.
        return {"strategy": "capstan.single", "tokens_per_second": 1e4,
                "parameters": 135_000_000}


class Measuring(unittest.TestCase):

    def test_a_run_is_found_by_its_contestant(self):
        contestant = Contestant("smollm2-135m", "single", CAPSTAN)
        got = compare.measure(FakeRunner(), contestant, 0, 989e12)
        self.assertEqual(
            comparison.values_of([got], contestant, "tokens/s"), {0: 1e4})
        work = contestants.WORK["cuda"]["smollm2-135m"]
        flops = 6 * 135e6 + 12 * 30 * 576 * work.sequence_length
        self.assertAlmostEqual(got["fraction_of_peak"], 1e4 * flops / 989e12)


class Processes(unittest.TestCase):

    def run_shell(self, script, limit=10):
        return processes.run(["bash", "-c", script], "/", dict(os.environ),
                             limit)

    def test_gives_output(self):
        self.assertEqual(self.run_shell("echo fine; echo noise >&2"), "fine\n")

    def test_failure_says_why(self):
        with self.assertRaisesRegex(processes.RunError,
                                    "status 3\nno such thing"):
            self.run_shell("echo no such thing >&2; exit 3")

    def test_a_session_within_is_ended_too(self):
        # As torchrun's ranks: in a session of their own, and not waited for.
        for script, raises in (("setsid sleep 60 >/dev/null & echo $!", False),
                               ("setsid sleep 60 & echo $! >%s; wait", True)):
            with self.subTest(script), tempfile.NamedTemporaryFile("r") as file:
                begin = time.monotonic()
                if raises:
                    with self.assertRaises(processes.RunError):
                        self.run_shell(script % file.name, limit=1)
                    pid = int(file.read())
                else:
                    pid = int(self.run_shell(script))
                self.assertLess(time.monotonic() - begin, 30)
                self.assertFalse(pathlib.Path("/proc/%d" % pid).exists())


if __name__ == "__main__":
    sys.exit(unittest.main())
