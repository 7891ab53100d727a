#!/usr/bin/env python3
"""What scripts/replays.py takes for a regression. usage: replays_test.py SCRIPTS"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv.pop(1))))
import replays  # noqa: E402

GIB = 1 << 30


def plan(hbm_bytes: int = 2 * GIB, **changes: float) -> dict:
    row = {"hbm_bytes": hbm_bytes, "ms": 100.0, "schedule_ms": 80.0, "in_gib": 3.0, "out_gib": 2.0, "maps": 200.0}
    return {"peak_bytes": 4 * GIB, "rows": [{**row, **changes}]}


class Regressions(unittest.TestCase):
    def test_the_same_is_none(self):
        self.assertEqual(replays.regressions("conv", plan(), plan()), [])

    def test_more_of_anything_is_one(self):
        for what, value in (("ms", 104), ("in_gib", 3.2), ("out_gib", 2.2), ("maps", 215)):
            with self.subTest(what=what):
                (said,) = replays.regressions("conv", plan(**{what: value}), plan())
                self.assertIn(f"conv in 2.00 GiB: {what} {value:.4g}, recorded", said)

    def test_less_and_little_more_are_none(self):
        self.assertEqual(replays.regressions("conv", plan(ms=50, in_gib=1, out_gib=0, maps=0), plan()), [])
        self.assertEqual(replays.regressions("conv", plan(ms=102.9, in_gib=3.05, maps=204), plan()), [])
        self.assertEqual(replays.regressions("conv", plan(out_gib=0.04, maps=4), plan(out_gib=0, maps=0)), [])

    def test_another_size_is_not_compared_silently(self):
        self.assertIn("has no row", replays.regressions("conv", plan(GIB), plan())[0])


class Table(unittest.TestCase):
    def test_a_row_says_how_it_stands_with_record_and_schedule(self):
        (line,) = replays.lines("conv", plan(ms=110), plan())
        self.assertIn("conv         1/2.00     110.0 ms  +10.0 %  1.38 of the schedule", line)
        (line,) = replays.lines("conv", plan(), None)
        self.assertNotIn("%", line)


if __name__ == "__main__":
    unittest.main()
