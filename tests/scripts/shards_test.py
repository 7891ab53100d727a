#!/usr/bin/env python3
"""shards_test.py SCRIPTS: scripts/shards.py gives every test one part, and every commit the next
part of the nightly.

That the parts hold what CTest has is what `scripts/shards.py check` finds in a build.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import shards  # noqa: E402


def test_of(program: str, name: str) -> dict:
    return {"name": name, "command": [f"/anywhere/bin/{program}"]}


class Parts(unittest.TestCase):
    def test_a_program_that_nobody_named_is_left_to_the_nightly(self):
        for number in range(100):
            self.assertIn(shards.part_of("tsan", test_of("new_test", f"New.{number}")), shards.NIGHTLY)

    def test_of_the_release_build_long_tests_are_left_to_the_nightly(self):
        test = test_of("new_test", "New.One")
        self.assertEqual(shards.part_of("release", test), shards.TEST)
        test["properties"] = [{"name": "LABELS", "value": ["long", "runtime"]}]
        self.assertIn(shards.part_of("release", test), shards.NIGHTLY)

    def test_the_nightly_takes_long_tests_and_those_whose_rounds_it_raises(self):
        tests = [test_of("a_test", "Long.One"), test_of("a_test", "Short.One"), test_of(shards.SEEDED[0], "Seeded.One")]
        tests[0]["properties"] = [{"name": "LABELS", "value": ["long"]}]
        self.assertEqual(shards.long_or_seeded_in(tests, shards.ALL), [1, 3])
        self.assertEqual(shards.long_or_seeded_in(tests, shards.part_of_nightly("Long.One"))[0], 1)

    def test_long_tests_of_a_named_program_are_left_to_the_nightly(self):
        self.assertEqual(shards.part_of("asan-ubsan", test_of("mover_test", "Residency.One")), shards.TEST)
        self.assertNotEqual(shards.part_of("asan-ubsan", test_of("mover_test", "Shapes/MoverFuzz.One/2")), shards.TEST)

    def test_a_program_that_is_not_built_keeps_its_part(self):
        self.assertEqual(shards.part_of("asan-ubsan", {"name": "mover_test_NOT_BUILT"}), shards.TEST)

    def test_a_program_of_another_kind_that_is_not_built_has_a_part(self):
        self.assertIn(shards.part_of("tsan", {"name": "Fuzz.wire"}), shards.NIGHTLY)

    def test_parts_hold_every_test_once_and_are_of_similar_size(self):
        tests = [test_of("base_test", f"Suite{number % 7}.Test{number}") for number in range(2000)]
        # `make test` has none.
        parts = [shards.numbers_in("tsan", tests, part) for part in shards.PARTS]
        self.assertEqual(sorted(number for part in parts for number in part), list(range(1, 2001)))
        self.assertEqual(parts[0], [])
        for part in parts[1:]:
            self.assertGreater(len(part), 70)
            self.assertLess(len(part), 130)
        self.assertEqual(shards.numbers_in("tsan", tests, shards.ALL), list(range(1, 2001)))

    def test_expressions_are_valid(self):
        for programs in shards.IN_TEST.values():
            for expression in programs.values():
                re.compile(expression)


class Labels(unittest.TestCase):
    def test_a_test_needs_the_label_of_a_module(self):
        tests = [test_of("a_test", name) for name in ("Labelled", "OnlyLong", "Bare")]
        tests[0]["properties"] = [{"name": "LABELS", "value": ["migration", "long"]}]
        tests[1]["properties"] = [{"name": "LABELS", "value": ["long"]}]
        self.assertEqual(shards.without_module(tests, {"base", "migration"}), ["OnlyLong", "Bare"])

    def test_modules_are_those_with_tests(self):
        self.assertLess({"base", "migration", "runtime", "scripts"}, shards.modules())


class Failures(unittest.TestCase):
    def test_the_end_of_what_a_failed_test_printed_is_kept_and_of_no_other(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "results.xml"
            lines = "\n".join(f"line {number}" for number in range(100))
            results.write_text(
                '<testsuite><testcase name="Good.One" time="1" status="run"><system-out>fine</system-out></testcase>'
                f'<testcase name="Bad.One" time="2.5" status="fail"><system-out>{lines}</system-out></testcase></testsuite>'
            )
            text = shards.failures_in("tsan", results)
        self.assertIn("tsan: Bad.One failed after 2.5 s", text)
        self.assertIn("line 99", text)
        self.assertNotIn("line 50\n", text)
        self.assertNotIn("Good.One", text)
        self.assertNotIn("fine", text)


class Turns(unittest.TestCase):
    def git(self, *words: object) -> None:
        settings = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *settings, *map(str, words)], cwd=self.tree, check=True, capture_output=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(setattr, shards, "ROOT", shards.ROOT)
        self.tree = shards.ROOT = pathlib.Path(folder.name)

    def test_as_many_commits_in_a_row_as_there_are_parts_take_each_once(self):
        self.git("init", "--quiet")
        seen = set()
        for _ in shards.NIGHTLY:
            self.git("commit", "--quiet", "--allow-empty", "--message", "one more")
            seen.add(shards.part_of_commit())
            self.assertEqual(shards.part_of_commit(), shards.part_of_commit())
        self.assertEqual(seen, set(shards.NIGHTLY))

    def test_a_shallow_clone_takes_its_commits_hash(self):
        origin = self.tree / "origin"
        origin.mkdir()
        self.tree = origin
        self.git("init", "--quiet")
        for _ in range(3):
            self.git("commit", "--quiet", "--allow-empty", "--message", "one more")
        self.tree = shards.ROOT = origin.parent
        self.git("clone", "--quiet", "--depth", 1, f"file://{origin}", "clone")
        shards.ROOT = origin.parent / "clone"
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=shards.ROOT, check=True, capture_output=True, text=True)
        self.assertEqual(shards.part_of_commit(), str(int(done.stdout, 16) % shards.PARTS_OF_NIGHTLY))

    def test_a_tree_without_git_has_a_part(self):
        self.assertIn(shards.part_of_commit(), shards.NIGHTLY)


if __name__ == "__main__":
    unittest.main()
