#!/usr/bin/env python3
"""campaign_test.py SCRIPTS: scripts/campaign.py counts what rounds did, and a round that did
nothing is no success.
"""

import contextlib
import io
import pathlib
import random
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPTS))
import campaign  # noqa: E402

OK = "[ RUN      ] Deaths.One\n[       OK ] Deaths.One (12 ms)\n"
SKIPPED = ("[ RUN      ] Deaths.Two\n/anywhere/deaths_test.cpp:141: Skipped\nonly root mounts file systems\n\n"
           "[  SKIPPED ] Deaths.Two (0 ms)\n")
ROOT_ONLY = "only root mounts file systems"


def kind(counted: str = r"^\[       OK \]", may_skip: str = "", command: str = "true") -> campaign.Kind:
    return campaign.Kind("deaths", "what", 1, command, {}, "deaths", counted, may_skip)


def kind_of(name: str) -> campaign.Kind:
    return next(each for each in campaign.KINDS if each.name == name)


class Judging(unittest.TestCase):
    def test_tests_that_passed_are_counted(self):
        self.assertEqual(campaign.judge(kind(), 0, OK * 3), campaign.Round(3, [], ""))

    def test_numbers_are_added(self):
        output = "60 runs, 120 call stacks refused\n60 runs, 7 call stacks refused\n"
        self.assertEqual(campaign.judge(kind_of("memory"), 0, output).done, 127)

    def test_every_stop_and_kill_is_counted(self):
        output = "  {'stops': 3, 'daemon_kills': 2, 'program_kills': 1}; 4 programs, 900 operations\n"
        self.assertEqual(campaign.judge(kind_of("stops"), 0, output).done, 6)

    def test_kills_of_every_kind_of_process_are_counted(self):
        output = "  {'readers killed': 22, 'owners killed': 7, 'daemons killed': 21, 'TIMEOUT': 43}\n"
        self.assertEqual(campaign.judge(kind_of("cluster"), 0, output).done, 50)

    def test_a_round_that_did_nothing_fails(self):
        judged = campaign.judge(kind(), 0, "Note: Google Test filter = NoSuch.*\n[  PASSED  ] 0 tests.\n")
        self.assertTrue(judged.failure.startswith("did nothing: "), judged)

    def test_a_program_that_counts_0_did_nothing(self):
        judged = campaign.judge(kind_of("memory"), 0, "3 runs, 0 call stacks refused\n")
        self.assertTrue(judged.failure.startswith("did nothing: "), judged)

    def test_what_the_machine_cannot_do_is_skipped_with_the_programs_reason(self):
        judged = campaign.judge(kind(may_skip="only root"), 0, SKIPPED * 5)
        self.assertEqual(judged, campaign.Round(0, [ROOT_ONLY], ""))

    def test_a_part_that_is_skipped_is_told_as_well(self):
        judged = campaign.judge(kind(may_skip="only root"), 0, OK + SKIPPED)
        self.assertEqual(judged, campaign.Round(1, [ROOT_ONLY], ""))

    def test_a_skip_for_any_other_reason_fails(self):
        for allowed in ("", "network namespace"):
            judged = campaign.judge(kind(may_skip=allowed), 0, OK + SKIPPED)
            self.assertEqual(judged.failure, f"skipped tests: {ROOT_ONLY}")

    def test_an_exit_code_fails_whatever_was_done(self):
        self.assertEqual(campaign.judge(kind(), -11, OK).failure, "ended with -11")

    def test_disks_and_networks_may_be_skipped(self):
        network = SKIPPED.replace(ROOT_ONLY, "network namespaces need root")
        self.assertFalse(campaign.judge(kind_of("disks"), 0, SKIPPED).failure)
        self.assertFalse(campaign.judge(kind_of("deaths"), 0, OK + network).failure)
        self.assertTrue(campaign.judge(kind_of("churn"), 0, SKIPPED).failure)


class Rounds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name in ("ROOT", "LOGS"):
            self.addCleanup(setattr, campaign, name, getattr(campaign, name))
            setattr(campaign, name, pathlib.Path(folder.name))

    def run_kind(self, seconds: float, **how: str) -> dict:
        self.said = io.StringIO()
        with contextlib.redirect_stdout(self.said):
            return campaign.run_kind(kind(**how), seconds, random.Random(1))

    def test_rounds_repeat_until_the_time_is_over(self):
        row = self.run_kind(0.5, counted="^seed", command="echo seed {seed}")
        self.assertGreater(row["rounds"], 1)
        self.assertEqual(row["done"], row["rounds"])
        self.assertEqual((row["failures"], row["skipped"]), ([], []))
        self.assertEqual(list(campaign.LOGS.iterdir()), [])

    def test_the_command_in_the_log_is_not_counted(self):
        row = self.run_kind(0, counted="did", command="sh -c 'exit 0' did")
        self.assertEqual(row["done"], 0)

    def test_a_round_that_did_nothing_is_told_once_and_its_output_is_kept(self):
        row = self.run_kind(60, command="echo nothing")
        self.assertEqual((row["rounds"], len(row["failures"])), (1, 1))
        self.assertIn("did nothing", self.said.getvalue())
        self.assertEqual((campaign.LOGS / "deaths-0.log").read_text(), "echo nothing\nnothing\n")

    def test_a_skipped_row_says_why(self):
        (campaign.ROOT / "output").write_text(SKIPPED)
        row = self.run_kind(60, may_skip="only root", command="cat output")
        self.assertEqual((row["rounds"], row["failures"], row["skipped"]), (1, [], [ROOT_ONLY]))
        self.assertTrue(campaign.line(row).endswith(f"  skipped: {ROOT_ONLY}"), campaign.line(row))
        (campaign.ROOT / "output").write_text(OK + SKIPPED)
        row = self.run_kind(0, may_skip="only root", command="cat output")
        self.assertTrue(campaign.line(row).endswith(f"  skipped in part: {ROOT_ONLY}"), campaign.line(row))


if __name__ == "__main__":
    unittest.main()
