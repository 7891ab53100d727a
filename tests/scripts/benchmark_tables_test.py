#!/usr/bin/env python3
"""benchmark_tables_test.py SCRIPTS: tables in documents say what the records say, and nothing else.
"""

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
    "limit_exceeded": False,
    "unit": "GB/s",
    "goal": {"bound": "at_least", "of": "ratio", "value": 0.97, "met": True},
    "details": {"processed_gb_per_s": 93.0},
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
        self.assertIn("| stream read-only 4x | 50 GB/s | 70 GB/s | 1.400 | ≥ 0.97 | 93 GB/s |\n", text)
        self.assertIn("NVIDIA H200; commit 0123456; records: `records.json`.", text)
        self.assertNotIn("typed", text)
        self.assertTrue(text.startswith("before\n<!-- table") and text.endswith("<!-- end of table -->\nbehind\n"))

    def test_the_figure_of_an_older_record_is_what_crossed_the_link(self):
        older = {"details": {"moved_gb_per_s": 49.0}, "achieved": 70.0, "ratio": 1.4}
        self.assertIn("| stream read-only 4x | 50 GB/s | 49 GB/s | 0.980 | ≥ 0.97 | 70 GB/s |\n", self.written(RECORD | older))

    def test_what_beats_its_limit_says_so(self):
        self.assertIn("| 1.400 (above its limit) |", self.written(RECORD | {"limit_exceeded": True}))

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


class Commits(unittest.TestCase):
    def test_records_that_name_no_commit_of_the_history_are_listed(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / benchmark_tables.RESULTS).mkdir(parents=True)
            rows = [RECORD | {"commit": "a" * 40}, RECORD | {"commit": "a" * 40 + "-dirty"}, RECORD | {"commit": "unknown"}]
            (root / benchmark_tables.RESULTS / "h.json").write_text(json.dumps(rows))
            (root / benchmark_tables.RESULTS / "nightly.json").write_text(json.dumps({"commit": "b" * 40}))
            wrong = benchmark_tables.without_commit({"a" * 40}, root)
        self.assertEqual(
            wrong,
            [
                f"bench/results/h.json: stream read-only 4x: commit {'a' * 40}-dirty",
                "bench/results/h.json: stream read-only 4x: commit unknown",
                f"bench/results/nightly.json: all of it: commit {'b' * 40}",
            ],
        )

    def test_outside_a_repository_there_is_no_history(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIsNone(benchmark_tables.history(pathlib.Path(folder)))

    def test_every_record_here_names_a_commit_of_the_history(self):
        commits = benchmark_tables.history()
        if commits is None:
            self.skipTest("no repository")
        self.assertEqual(benchmark_tables.without_commit(commits), [])


if __name__ == "__main__":
    unittest.main()
