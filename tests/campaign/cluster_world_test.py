#!/usr/bin/env python3
"""Tests of cluster_world.py: the rate of a program by its reports."""
import threading
import unittest
from unittest import mock

import cluster_world
from cluster_world import Program


def program(*history: tuple[float, int]) -> Program:
    made = Program.__new__(Program)
    made.history = list(history)
    return made


class RateTest(unittest.TestCase):
    def test_between_two_reports_operations_are_even(self):
        self.assertEqual(program((0, 0), (1, 10), (3, 50)).rate(0.5, 2), (30 - 5) / 1.5)

    def test_the_report_after_the_end_is_waited_for(self):
        late = program((0, 0), (0.8, 80))
        report = threading.Timer(0.3, lambda: late.history.append((1.05, 105)))
        report.start()
        self.addCleanup(report.join)
        self.assertAlmostEqual(late.rate(0, 1), 100)

    def test_a_program_that_stands_still_does_nothing_more(self):
        with mock.patch.object(cluster_world, "REPORT_S", 0.1):
            self.assertEqual(program((0, 0), (0.5, 50)).rate(0, 1), 50)


if __name__ == "__main__":
    unittest.main()
