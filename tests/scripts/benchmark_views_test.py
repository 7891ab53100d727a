#!/usr/bin/env python3
"""benchmark_views_test.py SCRIPTS: views say what the records say, and refuse what is no result."""

import json
import pathlib
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import benchmark_tables  # noqa: E402
import benchmark_views  # noqa: E402

GIB = 1 << 30
PROGRAM = {
    "scenario": "fits: llama",
    "limit_name": "native",
    "limit": 0.020,
    "limit_peak_bytes": 6 * GIB,
    "achieved": 0.025,
    "ratio": 0.8,
    "goal": {"bound": "at_least", "of": "ratio", "value": 0.99, "met": False},
    "options": {"hbm_bytes": 16 * GIB},
    "details": {},
    "commit": "0123456789abcdef",
    "command": "compare.py --only fits --json /tmp/fits.json",
    "verified": True,
}
FIGURE = {
    "scenario": "peer",
    "variant": "read-only 4x",
    "limit_name": "copies",
    "limit": 400.0,
    "achieved": 300.0,
    "ratio": 0.75,
    "unit": "GB/s",
    "goal": {"bound": "at_least", "of": "ratio", "value": 0.95, "met": False},
    "details": {},
    "commit": "0123456789abcdef",
    "command": "vmem bench peer --hbm 8GiB --json /tmp/peer.json",
    "verified": True,
}


class Views(unittest.TestCase):
    def view(self, name: str, *records: dict) -> str:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "records.json").write_text(json.dumps(records))
            return benchmark_views.view("records.json", name, root)

    def test_a_program_stands_beside_what_it_is_compared_with(self):
        text = self.view("programs", PROGRAM)
        self.assertIn("| Llama-shaped forward, 7.0 GB | 16 GiB | 6 GiB | 25 ms | 20 ms, native | 0.800 | ≥ 0.99 ✗ | `0123456` |\n", text)

    def test_a_program_without_a_name_for_readers_is_left_out(self):
        self.assertNotIn("sharing", self.view("programs", PROGRAM | {"scenario": "sharing a GPU: generate"}))

    def test_strict_mode_stands_in_the_row_of_its_program(self):
        text = self.view("halves", PROGRAM | {"scenario": "same: conv"}, PROGRAM | {"scenario": "strict: conv", "ratio": 0.25})
        self.assertIn("| conv | 6 GiB | 16 GiB | 20 ms | 25 ms | 0.80 | 0.25 | `0123456` |\n", text)
        self.assertEqual(text.count("conv"), 1)

    def test_of_programs_that_ran_by_turns_all_turns_count(self):
        details = {"steps_s": [0.03, 0.01, 0.02], "native_steps_s": [0.01, 0.03, 0.015], "ratio_quartiles": [0.7, 0.8, 0.9]}
        text = self.view("programs", PROGRAM | {"details": details})
        self.assertIn("| 20 ms | 15 ms, native | 0.800 (0.70, 0.90) |", text)

    def test_a_launch_is_told_by_the_median_of_pairs_and_by_all_pairs(self):
        details = {"native_ns": [100, 110, 300], "vmem_ns": [150, 400, 290]}
        text = self.view("launch", PROGRAM | {"scenario": "a launch with eight pointers", "details": details})
        self.assertIn("| 110 ns | 290 ns | +50 ns | -10 to +290 ns |", text)

    def test_the_figures_of_a_command_share_a_row(self):
        text = self.view("peers", FIGURE, FIGURE | {"variant": "read-write 4x", "goal": None, "ratio": 1.0})
        self.assertIn("| `--hbm 8GiB` | 300 of 400 (0.75 ✗) | 300 of 400 (1.00) | `0123456` |\n", text)

    def test_commands_are_listed_once(self):
        text = self.view("commands", FIGURE, FIGURE | {"variant": "read-write 4x"})
        self.assertEqual(text.count("vmem bench peer --hbm 8GiB"), 1)
        self.assertIn("| 1 | peer read-write 4x | 400 GB/s | 300 GB/s | 0.75 | ≥ 0.95 ✗ | `0123456` |\n", text)

    def test_a_figure_without_a_limit_has_no_ratio(self):
        goal = {"bound": "at_most", "of": "achieved", "value": 0, "met": True}
        text = self.view("commands", FIGURE | {"limit": None, "ratio": None, "achieved": 0, "unit": "pages", "goal": goal})
        self.assertIn("| 1 | peer read-only 4x | – | 0 pages | – | ≤ 0 | `0123456` |\n", text)

    def test_of_a_stream_the_link_s_bytes_are_compared(self):
        older = FIGURE | {"details": {"moved_gb_per_s": 200.0}}
        self.assertEqual(benchmark_views.over_link(older), (200.0, 0.5))
        newer = FIGURE | {"details": {"moved_gb_per_s": 300.0, "processed_gb_per_s": 390.0}}
        self.assertEqual(benchmark_views.over_link(newer), (300.0, 0.75))

    def test_what_was_not_verified_is_no_result(self):
        for name, record in (("programs", PROGRAM), ("halves", PROGRAM | {"scenario": "same: conv"}), ("peers", FIGURE), ("commands", FIGURE)):
            with self.assertRaisesRegex(ValueError, "verified"):
                self.view(name, record | {"verified": False})

    def test_an_unknown_view_is_an_error_that_names_those_there_are(self):
        with self.assertRaisesRegex(ValueError, "halves"):
            self.view("nonsense", PROGRAM)

    def test_a_document_names_a_view_behind_its_records(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "records.json").write_text(json.dumps([PROGRAM]))
            text = benchmark_tables.with_tables("<!-- table: records.json#programs -->\n<!-- end of table -->\n", root)
            self.assertIn("| Llama-shaped forward", text)

    def test_readme_s_tables_are_made_of_the_records_in_the_tree(self):
        root = SCRIPTS.parent
        for name in ("results", "your-program"):
            self.assertIn("| ", benchmark_views.view("bench/results", name, root))


if __name__ == "__main__":
    unittest.main()
