#!/usr/bin/env python3
"""Tests of cluster_figures.py: which figures are within their bounds, and what records say."""
import contextlib
import io
import json
import pathlib
import tempfile
import unittest

from cluster_figures import Figures, without_paths


class FiguresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        vmem = self.folder / "vmem"
        vmem.write_text("#!/bin/sh\necho 'vmem 1.2 (commit abc123)'\n")
        vmem.chmod(0o700)
        self.figures = Figures(str(vmem), 7)
        quiet = contextlib.redirect_stdout(io.StringIO())
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def end(self) -> tuple[int, list[dict]]:
        path = self.folder / "records.json"
        return self.figures.end(str(path), "logs"), json.loads(path.read_text())

    def test_a_ratio_is_held_against_its_bound(self):
        self.figures.add("rate", 95, "op/s", limit=100, limit_name="before", least=0.95)
        self.figures.add("page", 12, "ms", limit=10, limit_name="socket", most=1.25, page_bytes=2)
        status, (rate, page) = self.end()
        self.assertEqual(status, 0)
        self.assertEqual((rate["ratio"], rate["goal"]["met"], rate["goal"]["bound"]), (0.95, True, "at_least"))
        self.assertEqual((page["ratio"], page["goal"]["met"], page["goal"]["bound"]), (1.2, True, "at_most"))
        self.assertEqual((page["commit"], page["options"], page["verified"], page["emulated"]), ("abc123", {"seed": 7}, True, True))
        self.assertEqual(page["details"], {"page_bytes": 2})

    def test_a_figure_without_a_limit_is_held_against_the_bound_itself(self):
        self.figures.add("wrong", 0, "pages", most=0)
        self.assertEqual(self.figures.missed, [])
        self.figures.add("wrong", 1, "pages", most=0)
        status, records = self.end()
        self.assertEqual((status, [each["goal"]["met"] for each in records]), (1, [True, False]))
        self.assertEqual(records[1]["ratio"], None)

    def test_a_miss_is_a_result_and_a_failure_is_none(self):
        self.figures.add("rate", 1, "op/s", limit=100, limit_name="before", least=0.95)
        status, (rate,) = self.end()
        self.assertEqual((status, rate["goal"]["met"], rate["verified"]), (1, False, True))
        self.figures.fail("other bytes")
        status, (rate,) = self.end()
        self.assertEqual((status, rate["verified"], rate["mismatch"]), (1, False, "other bytes"))

    def test_nothing_to_compare_with_is_a_failure(self):
        self.figures.add("rate", 1, "op/s", limit=0, limit_name="before", least=0.95)
        self.assertEqual(self.end(), (1, []))
        self.assertIn("before", self.figures.failures[0])

    def test_what_has_to_hold_is_a_failure_where_it_does_not(self):
        self.figures.expect(True, "no call failed")
        self.assertEqual(self.end()[0], 0)
        self.figures.expect(False, "one call failed")
        self.assertEqual(self.end()[0], 1)

    def test_the_command_names_no_folder_of_this_machine(self):
        words = ["join", "--bin", "/x/bin", "--noisy", "--json=/y", "--ratio", "0.9", "--json", "/z"]
        self.assertEqual(without_paths(words), ["join", "--noisy", "--ratio", "0.9"])


if __name__ == "__main__":
    unittest.main()
