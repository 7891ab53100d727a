#!/usr/bin/env python3
"""coverage_test.py SCRIPTS: scripts/coverage.py names the lines of errors that did not run, of
programs that did.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import coverage  # noqa: E402

PROGRAM = """\
int fail(int status) { return status; }
int serve(int pages) {
  if (pages < 0)
    return fail(1);
  if (pages > 100)
    return fail(2);
  return 0;
}
int main() { return serve(-1) == 1 ? 0 : 1; }
"""


class Coverage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name).resolve()
        self.module = self.root / "src/tiers"
        self.module.mkdir(parents=True)
        (self.module / "serve.cpp").write_text(PROGRAM)
        self.build = self.root / "build"
        self.build.mkdir()
        subprocess.run(["g++", "--coverage", "-O0", "-o", "serve", self.module / "serve.cpp"], cwd=self.build, check=True)

    def counts(self):
        return coverage.counts_of_build(self.build, self.root / "src", "gcov", 1)

    def test_the_error_that_did_not_run_is_named_with_its_line(self):
        subprocess.run([self.build / "serve"], check=True)
        _, missed = coverage.report(self.counts(), self.root / "src")
        self.assertEqual(missed, ["src/tiers/serve.cpp:6: return fail(2);"])

    def test_the_table_counts_by_module(self):
        subprocess.run([self.build / "serve"], check=True)
        table, _ = coverage.report(self.counts(), self.root / "src")
        rows = {line.split()[0]: line.split()[1:4] for line in table[1:]}
        # The definition of fail counts as a line of errors; it ran.
        self.assertEqual(rows["tiers"], ["2", "of", "3"])
        self.assertEqual(rows["all"], rows["tiers"])

    def test_a_program_that_never_ran_has_run_nothing(self):
        _, missed = coverage.report(self.counts(), self.root / "src")
        self.assertEqual([line.split(":")[1] for line in missed], ["1", "4", "6"])

    def test_a_comparison_with_a_status_is_no_error(self):
        self.assertFalse(coverage.is_error("if (failed->status != VMEM_ERROR_TIMEOUT) return;"))
        self.assertFalse(coverage.is_error("    case VMEM_ERROR_LOST:"))
        self.assertTrue(coverage.is_error("  return {VMEM_ERROR_TIMEOUT, 0,"))


if __name__ == "__main__":
    unittest.main()
