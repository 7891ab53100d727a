#!/usr/bin/env python3
"""benchmark_tables_test.py SCRIPTS: tables in documents say what the records say, and nothing else."""

import json
import pathlib
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import benchmark_tables  # noqa: E402

RECORD = {
    "scenario": "stream",
    "variant": "read-only 4x",
    "device": "NVIDIA H200",
    "emulated": False,
    "commit": "0123456789abcdef",
    "limit": 50.0,
    "achieved": 70.0,
    "ratio": 1.4,
    "unit": "GB/s",
    "goal": {"bound": "at_least", "of": "ratio", "value": 0.97, "met": True},
    "details": {"moved_gb_per_s": 49.0},
    "verified": True,
}
DOCUMENT = "before\n<!-- table: records.json -->\ntyped\n<!-- end of table -->\nbehind\n"


class Tables(unittest.TestCase):
    def written(self, *records: dict, text: str = DOCUMENT) -> str:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "records.json").write_text(json.dumps(records))
            once = benchmark_tables.with_tables(text, root)
            self.assertEqual(benchmark_tables.with_tables(once, root), once)
            return once

    def test_a_row_says_what_its_record_says(self):
        text = self.written(RECORD)
        self.assertIn("| stream read-only 4x | 50 GB/s | 70 GB/s | 1.400 | ≥ 0.97 | 0.980 |\n", text)
        self.assertIn("NVIDIA H200; commit 0123456; records: `records.json`.", text)
        self.assertNotIn("typed", text)
        self.assertTrue(text.startswith("before\n<!-- table") and text.endswith("<!-- end of table -->\nbehind\n"))

    def test_a_miss_is_marked(self):
        missed = RECORD | {"goal": RECORD["goal"] | {"bound": "at_most", "value": 0.5, "met": False}}
        self.assertIn("| ≤ 0.5 ✗ |", self.written(missed))

    def test_what_has_no_limit_and_no_goal_has_none_in_the_table(self):
        bare = RECORD | {"limit": None, "ratio": None, "goal": None, "details": {}, "achieved": 1_234_567.0}
        self.assertIn("| stream read-only 4x | – | 1234567 GB/s | – |  | – |\n", self.written(bare))

    def test_an_emulated_figure_is_labelled(self):
        self.assertIn("NVIDIA H200 (emulated)", self.written(RECORD | {"emulated": True}))

    def test_what_was_not_verified_is_no_result(self):
        with self.assertRaisesRegex(ValueError, "stream"):
            self.written(RECORD | {"verified": False})

    def test_a_table_without_an_end_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "missing"):
            self.written(RECORD, text=DOCUMENT.replace("<!-- end of table -->", ""))


if __name__ == "__main__":
    unittest.main()
