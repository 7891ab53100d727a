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
    return {"peak_bytes": 4 * GIB, "fits": {"ms": 40.0}, "rows": [{**row, **changes}]}


class Regressions(unittest.TestCase):
    def test_the_same_is_none(self):
        self.assertEqual(replays.regressions("conv", plan(), plan()), [])

    def test_more_of_anything_is_one(self):
        for what, value in (("ms", 112), ("in_gib", 3.4), ("out_gib", 2.3), ("maps", 230)):
            with self.subTest(what=what):
                (said,) = replays.regressions("conv", plan(**{what: value}), plan())
                self.assertIn(f"conv in 2.00 GiB: {what} {value:.4g}, recorded", said)

    def test_less_and_little_more_are_none(self):
        self.assertEqual(replays.regressions("conv", plan(ms=50, in_gib=1, out_gib=0, maps=0), plan()), [])
        self.assertEqual(replays.regressions("conv", plan(ms=109, in_gib=3.2, maps=210), plan()), [])
        self.assertEqual(replays.regressions("conv", plan(out_gib=0.04, maps=4), plan(out_gib=0, maps=0)), [])

    def test_another_size_is_not_compared_silently(self):
        lost, new = replays.regressions("conv", plan(GIB), plan())
        self.assertIn("nothing was played in 2147483648 bytes", lost)
        self.assertIn("has no row", new)

    def test_taking_longer_where_all_fits_is_one(self):
        slower = plan()
        slower["fits"] = {"ms": 45.0}
        self.assertIn("where all fits: ms 45, recorded 40", replays.regressions("conv", slower, plan())[0])


    def test_many_that_are_a_little_slower_are_one(self):
        then = {"conv": plan(), "unet": plan(), "new": plan()}
        self.assertEqual(replays.slower_together({"conv": plan(ms=102), "unet": plan(ms=99)}, then), [])
        (said,) = replays.slower_together({"conv": plan(ms=104), "unet": plan(ms=101)}, then)
        self.assertIn("all together take 2.5 % longer", said)


class Table(unittest.TestCase):
    def test_a_row_says_how_it_stands_with_record_and_schedule(self):
        (line,) = replays.lines("conv", plan(ms=110), plan())
        self.assertIn("conv         1/2.00     110.0 ms  +10.0 %  1.38 of the schedule", line)
        (line,) = replays.lines("conv", plan(), None)
        self.assertNotIn("%", line)


if __name__ == "__main__":
    unittest.main()
