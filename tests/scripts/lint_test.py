#!/usr/bin/env python3
"""lint_test.py SCRIPTS: which files scripts/lint.py takes for what has changed lately."""

import pathlib
import sys
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import lint  # noqa: E402


class Recent(unittest.TestCase):
    INCLUDED = {
        "a/one.cpp": {"a/one.hpp", "a/all.hpp"},
        "a/two.cpp": {"a/two.hpp", "a/all.hpp", "a/one.hpp"},
        "b/three.cpp": {"a/all.hpp"},
    }

    def chosen(self, *changed: str) -> list[str]:
        return sorted(lint.sources_of(set(changed), self.INCLUDED))

    def test_sources_that_have_changed_are_linted(self):
        self.assertEqual(self.chosen("a/two.cpp", "docs/x.md"), ["a/two.cpp"])

    def test_a_header_is_linted_by_the_source_that_is_named_after_it(self):
        self.assertEqual(self.chosen("a/two.hpp"), ["a/two.cpp"])
        self.assertEqual(self.chosen("a/one.hpp"), ["a/one.cpp"])

    def test_a_header_of_no_source_is_linted_once(self):
        self.assertEqual(self.chosen("a/all.hpp"), ["b/three.cpp"])

    def test_a_header_that_a_changed_source_includes_needs_no_other(self):
        self.assertEqual(self.chosen("a/two.cpp", "a/one.hpp", "a/all.hpp"), ["a/two.cpp"])

    def test_a_header_that_nothing_includes_is_not_linted(self):
        self.assertEqual(self.chosen("a/none.hpp"), [])


if __name__ == "__main__":
    unittest.main()
