# SPDX-License-Identifier: Apache-2.0
"""The arithmetic and tables of the comparison; runs leave nothing behind."""

import json
import os
import pathlib
import sys
import tempfile
import time
import unittest

import against
import chat
import checkpoint
import compare
import comparison
import contestants
import generate
import processes
import report
import start
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
                ours = Contestant(shape, strategy, CAPSTAN)
                self.assertIn(comparison.other(ours, peer), who)
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

    def test_bf16_runs_beside_our_fp32(self):
        who = comparison.contestants("cpu", ["mini", "mini-bf16"], None, [])
        self.assertEqual(contestants.precision("cpu", "mini"), "fp32")
        self.assertEqual(contestants.precision("cpu", "mini-bf16"), "bf16")
        rows = comparison.rows("cpu", who, speeds(
            "mini", "ddp", CAPSTAN, [100.0, 50.0]) + speeds(
                "mini-bf16", "ddp", CAPSTAN, [150.0, 100.0]))
        beside = [r for r in rows if r["peer"] == comparison.OUR_FP32]
        self.assertEqual([r["figure"] for r in beside], ["tokens/s"])
        self.assertEqual(beside[0]["ratio"]["lowest"], 1.5)
        self.assertEqual(beside[0]["ratio"]["highest"], 2.0)
        self.assertEqual(report.against(beside[0]), "ddp / our fp32")

    def test_other_methods_are_shapes_of_their_own(self):
        for shape, method in (("mini", ""), ("mini-bf16", ""),
                              ("mini-llada", "-llada"), ("mini-lora", "-lora")):
            self.assertEqual(contestants.method(shape), method)
            self.assertEqual(contestants.SHAPES[shape],
                             contestants.SHAPES["mini"])

    def test_only_lora_wants_peft(self):
        self.assertNotIn("peft", contestants.packages_of(["mini", "tiny"]))
        self.assertIn("peft", contestants.packages_of(["mini", "mini-lora"]))

    def test_sides_with_different_models_are_told(self):
        ours = measurement(0, "mini", "ddp", CAPSTAN, parameters=5)
        same = measurement(0, "mini", "ddp", EAGER, parameters=5)
        other = measurement(0, "mini", "ddp", EAGER, parameters=6)
        self.assertEqual(comparison.different_work([ours, same]), [])
        self.assertEqual(
            comparison.different_work([ours, other]),
            ["mini, ddp: not the same model: capstan has 5 parameters, "
             "eager has 6 parameters"])

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
             "1.38x (1.25..1.50) | 1.3x / 1.6x | bar |  |",
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


class Generation(unittest.TestCase):

    def figures(self, short, long, prompt, **more):
        return {"seconds": {"short": short, "long": long, "prompt": prompt},
                "rss": 2e9, **more}

    def test_start_and_loading_dont_count(self):
        figures = self.figures(3.0, 4.0, 3.5)
        self.assertEqual(generate.rate(figures, 16),
                         16 * (generate.LONG[16] - generate.SHORT))
        self.assertEqual(generate.prompt_rate(
            figures, 2, {"short": 100, "long": 600}), 2000.0)

    def test_table_and_agreement(self):
        cell = {"weights": "float32", "threads": 1, "batch": 1}
        tokens = {"short": 100, "long": 600}
        new = generate.LONG[1] - generate.SHORT
        measurements = [
            {**cell, "side": generate.STREAM, "read": 2 * new},
            {**cell, "side": generate.OURS, "text": "a",
             **self.figures(3.0, 4.0, 3.5)},
            {**cell, "side": generate.PEER, "text": "a",
             "prompt_tokens": tokens, **self.figures(3.0, 5.0, 4.0)}]
        self.assertEqual(
            generate.table(measurements, {"float32": 1e9}).splitlines()[2],
            "| float32 | 1 | 1 | 128 (128..128) | 64 (64..64) | "
            "2.00x (2.00..2.00) | 50 % | 1000 (1000..1000) | 500 (500..500) | "
            "2000 (2.00x) | 2000 |")
        self.assertIn("equal", generate.agreement(measurements))
        measurements[2]["text"] = "b"
        self.assertIn("'a', but transformers' 'b'",
                      generate.agreement(measurements))

    def test_a_given_folder_has_no_end_and_is_counted(self):
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made) / "model"
            folder.mkdir()
            (folder / "config.json").write_text(
                '{"eos_token_id": 2, "hidden_size": 8}')
            header = json.dumps({
                "__metadata__": {"format": "pt"},
                "a": {"dtype": "BF16", "shape": [3, 4],
                      "data_offsets": [0, 24]},
                "b": {"dtype": "F32", "shape": [5],
                      "data_offsets": [24, 44]}}).encode()
            (folder / "model.safetensors").write_bytes(
                len(header).to_bytes(8, "little") + header + bytes(44))
            used = generate.without_end(folder, pathlib.Path(made) / "used")
            self.assertEqual(json.loads((used / "config.json").read_text()),
                             {"eos_token_id": None, "hidden_size": 8})
            self.assertEqual(generate.values_in(used), 17)

    def test_chat_by_turn(self):
        self.assertEqual(
            chat.table([0.2, 0.3, 0.4], [[0.6, 0.1], [0.7, 0.2], [0.4, 0.3]])
            .splitlines()[2:],
            ["| start to prompt | 0.300 | 0.200 | 0.400 |  |",
             "| turn 1 | 0.600 | 0.400 | 0.700 | no |",
             "| turn 2 | 0.200 | 0.100 | 0.300 | yes |"])

    def test_a_terminal_gives_what_was_said(self):
        terminal = chat.Terminal(["/bin/bash", "-c", "printf '> \\x1b[0m'; "
                                  "read line; printf \"$line$line> \\x1b[0m\""])
        terminal.until(chat.PROMPT)
        terminal.write("ab")
        self.assertEqual(terminal.until(chat.PROMPT), b"abab")
        terminal.close()


class Start(unittest.TestCase):

    def test_table(self):
        runs = [("float32", "dropped", "capstan",
                 {"ready s": r, "first step s": 3.0, "peak MB": 2e9})
                for r in (0.5, 0.25, 1.0)]
        self.assertEqual(
            start.table(runs).splitlines()[2],
            "| float32 | dropped | capstan | 0.5 (0.25..1) | 3 (3..3) | "
            "2000 (2000..2000) |")


class Checkpoints(unittest.TestCase):

    def test_a_state_fits_memory(self):
        self.assertEqual(checkpoint.fitting(10**9, 100e9), 10**9)
        self.assertEqual(checkpoint.fitting(2 * 10**9, 14.5e9), 10**9)

    def test_table(self):
        turns = [("capstan", {"save": {"seconds": s, "cpu": 0.5}})
                 for s in (2.0, 1.0, 4.0)] + [("disk", {"save": {"seconds": 1}})]
        self.assertEqual(
            checkpoint.table(turns, 4e9).splitlines()[2:],
            ["| save | capstan | 2.00 (1.00..4.00) | 0.50 | 2.00 |",
             "| save | the disk | 1.00 (1.00..1.00) |  | 4.00 |"])

    def test_the_disk_holds_all_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            checkpoint.disk(folder, "save", 3 * checkpoint.CHUNK + 5)
            self.assertEqual((folder / "bytes").stat().st_size,
                             3 * checkpoint.CHUNK + 5)
            checkpoint.drop_from_cache(folder)
            checkpoint.disk(folder, "load", 0)


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


@unittest.skipUnless("CAPSTAN_BENCH_TRAINER" in os.environ, "wants a trainer")
class TinyRuns(unittest.TestCase):
    """What the script asks of the trainer is what the trainer understands."""

    # Two embeddings and layers of the shape tiny, and LoRA's of rank 16.
    EMBEDDING = 256 * 64
    LAYER = 2 * 64 * (64 + 32) + 3 * 64 * 172 + 2 * 64
    ADAPTER = 16 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 172))

    def run_of(self, shape):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write("the quick brown fox jumps over the lazy dog\n" * 200)
            text.flush()
            runner = contestants.Runner(
                "cpu", sys.executable, os.environ["CAPSTAN_BENCH_TRAINER"],
                text.name)
            return runner.measure(Contestant(shape, "ddp", CAPSTAN))

    def test_each_method(self):
        base = self.EMBEDDING + 2 * self.LAYER + 64
        for shape, parameters in (("tiny", base), ("tiny-llada", base),
                                  ("tiny-lora", base + 2 * self.ADAPTER)):
            with self.subTest(shape):
                figures = self.run_of(shape)
                self.assertEqual(figures["parameters"], parameters)
                work = contestants.WORK["cpu"][shape]
                self.assertEqual(figures["steps"], work.steps)
                self.assertEqual(
                    figures["tokens"], work.steps * work.sequence_length *
                    work.micro_batch_size * contestants.RANKS["cpu"])
                self.assertGreater(figures["tokens_per_second"], 0)


class Against(unittest.TestCase):

    def record(self, ours, theirs, figure="mini tokens/s"):
        return {"date": "2026-01-01", "commit": "new", "against": "old",
                "rows": [against.row(figure, [{figure: v} for v in ours],
                                     [{figure: v} for v in theirs])]}

    def test_more_than_one_is_ahead(self):
        faster = self.record([110, 55], [100, 50])["rows"][0]
        self.assertAlmostEqual(faster["ratio"]["median"], 1.1)
        sooner = self.record([0.2, 0.1], [0.4, 0.2], against.READY)["rows"][0]
        self.assertAlmostEqual(sooner["ratio"]["median"], 2.0)

    def test_a_change_is_the_same_in_nearly_every_round(self):
        for ours, theirs, expected in (
                ([110] * 7 + [99], [100] * 8, True),
                ([110] * 6 + [99], [100] * 7, False),
                ([110] * 8 + [99] * 2, [100] * 10, False),
                ([110, 105], [100, 100], True), ([90, 95], [100, 100], True),
                ([110, 99], [100, 100], False), ([101, 101], [100, 100], False)):
            row = self.record(ours, theirs)["rows"][0]
            self.assertEqual(against.changed(row), expected, (ours, theirs))

    def test_the_table_has_the_newest_changes(self):
        records = [self.record([100 + i], [100]) for i in range(20)]
        for i, record in enumerate(records):
            record["commit"] = "c%d" % i
        lines = against.history(records).splitlines()
        self.assertEqual(len(lines), 2 + against.SHOWN)
        self.assertIn("| c19 | old | mini tokens/s 1.19x", lines[2])
        # c0 and c1 changed nothing.
        self.assertEqual(
            len(against.history(records[:4]).splitlines()), 2 + 2)


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
