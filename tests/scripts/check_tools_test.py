#!/usr/bin/env python3
"""check_tools_test.py SCRIPTS: scripts/check_tools.py compares versions as scripts/tools.txt means
them.
"""

import pathlib
import sys
import unittest
from unittest import mock

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import check_tools  # noqa: E402


class Versions(unittest.TestCase):
    def test_a_plus_takes_newer_ones(self):
        self.assertTrue(check_tools.fits("3.25.1", "3.25+"))
        self.assertTrue(check_tools.fits("4.0", "3.25+"))
        self.assertFalse(check_tools.fits("3.9.9", "3.25+"))

    def test_without_one_only_the_stated_parts_count(self):
        self.assertTrue(check_tools.fits("19.1.7", "19"))
        self.assertFalse(check_tools.fits("20.1", "19"))

    def test_comments_are_no_tools(self):
        self.assertEqual(check_tools.wanted_versions("# a 1\ncmake 3.25+  # why\n\n"), {"cmake": "3.25+"})


class Files(unittest.TestCase):
    def problems(self, wanted: str) -> list[str]:
        return check_tools.problems_of_files("cmake", wanted)

    def test_the_tree_agrees_with_its_list(self):
        wanted = check_tools.wanted_versions(check_tools.LIST.read_text())
        for tool in check_tools.NAMED:
            self.assertEqual(check_tools.problems_of_files(tool, wanted[tool]), [])

    def test_another_version_in_a_file_is_found(self):
        self.assertIn("CMakeLists.txt: cmake 3.25, and scripts/tools.txt has 3.26+", self.problems("3.26+"))

    def test_a_file_that_names_no_version_any_more_is_found(self):
        with mock.patch.dict(check_tools.NAMED, {"cmake": (("CMakeLists.txt", r"no such line (\d+)"),)}):
            self.assertIn("names no version of cmake any more", self.problems("3.25+")[0])


if __name__ == "__main__":
    unittest.main()
