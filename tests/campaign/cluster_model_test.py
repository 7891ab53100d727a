#!/usr/bin/env python3
"""The outside model of who held what says when a page may be LOST, and when not."""
import unittest

from cluster_model import NEVER, Model, fewest


class Justifying(unittest.TestCase):
    def setUp(self):
        self.model = Model(heal_s=8, lease_s=6)

    def publish(self, copies: int, version: int = 1, at: float = 10, owner: str = "owner.0") -> None:
        self.model.publishing(owner, {"name": "t", "version": version, "copies": copies, "pages": 4, "written": at - 1,
                                      "begun": at, "expires": 1000})
        self.model.published({"name": "t", "version": version, "status": "OK", "ended": at + 1})

    def close(self, status: str, at: float, version: int = 1) -> None:
        self.model.closing({"name": "t", "version": version, "begun": at})
        self.model.closed({"name": "t", "version": version, "status": status})

    def lost(self, at: float, version: int = 1, process: str = "reader.0") -> str:
        return self.model.judge(process, {"name": "t", "version": version, "ended": at})

    def test_a_page_of_a_living_owner_is_not_lost_whatever_daemons_die(self):
        self.publish(copies=0)
        for number in range(5):
            self.model.died(f"daemon.{number}", 20, True)
        self.assertFalse(self.lost(30))

    def test_without_copies_it_may_be_lost_with_its_owner(self):
        self.publish(copies=0)
        self.model.died("owner.0", 20, False)
        self.assertFalse(self.lost(19))
        self.assertTrue(self.lost(21))

    def test_with_copies_as_many_daemons_have_to_die_as_well(self):
        self.publish(copies=2)
        self.model.died("owner.0", 20, False)
        self.model.died("daemon.0", 21, True)
        self.assertFalse(self.lost(22))
        self.model.died("daemon.1", 23, True)
        self.assertTrue(self.lost(24))

    def test_deaths_before_it_was_published_do_not_count(self):
        self.model.died("daemon.0", 5, True)
        self.publish(copies=1)
        self.model.died("owner.0", 20, False)
        self.assertFalse(self.lost(22))

    def test_copies_are_made_again_in_a_pause(self):
        self.publish(copies=2)
        self.model.died("owner.0", 20, False)
        self.model.died("daemon.0", 21, True)
        self.model.died("daemon.1", 30, True)
        self.assertFalse(self.lost(31))
        self.model.died("daemon.2", 32, True)
        self.assertTrue(self.lost(33))

    def test_copies_that_were_not_made_do_not_count(self):
        self.publish(copies=2)
        self.model.regions["t", 1].published = NEVER
        self.model.died("owner.0", 20, False)
        self.assertTrue(self.lost(22))

    def test_an_owner_that_closed_it_well_has_handed_it_over(self):
        self.publish(copies=0)
        self.close("OK", 20)
        self.assertFalse(self.lost(25))
        self.model.died("daemon.0", 26, True)
        self.assertTrue(self.lost(27))

    def test_an_owner_that_closed_it_alone_has_not(self):
        self.publish(copies=0)
        self.close("LOST", 20)
        self.assertTrue(self.lost(25))

    def test_an_owner_without_room_holds_pages_on_daemons(self):
        self.publish(copies=0)
        self.model.tight.add("owner.0")
        self.assertFalse(self.lost(15))
        self.model.died("daemon.0", 16, True)
        self.assertTrue(self.lost(17))

    def test_what_is_closed_later_is_not_handed_over_yet(self):
        self.publish(copies=0)
        self.model.tight.add("owner.0")
        self.model.died("daemon.0", 12, True)
        self.close("OK", at=30)
        self.assertTrue(self.lost(at=13))

    def test_what_was_lost_before_is_not_handed_over(self):
        self.publish(copies=1)
        self.model.tight.add("owner.0")
        self.model.died("daemon.0", 12, True)
        self.close("OK", at=30)
        self.assertTrue(self.lost(at=31))

    def test_a_later_version_ends_the_earlier_one_alone(self):
        self.publish(copies=0)
        self.publish(copies=0, version=2, at=20)
        self.assertTrue(self.lost(21))
        self.assertFalse(self.lost(21, version=2))

    def test_a_process_that_was_expelled_is_no_witness(self):
        self.publish(copies=0)
        self.model.ended["reader.0"] = 0
        self.assertTrue(self.lost(15))

    def test_what_must_be_there_is_published_lasting_and_held(self):
        self.publish(copies=1)
        self.assertEqual([each.name for each in self.model.must_be_there(20, 25)], ["t"])
        self.assertFalse(self.model.must_be_there(20, 990))
        self.model.died("owner.0", 21, False)
        self.model.died("daemon.0", 22, True)
        self.assertFalse(self.model.must_be_there(23, 25))

    def test_an_old_version_is_stale_after_a_while(self):
        self.publish(copies=0)
        self.publish(copies=0, version=2, at=20)
        self.assertFalse(self.model.is_stale({"name": "t", "version": 1, "begun": 22}))
        self.assertTrue(self.model.is_stale({"name": "t", "version": 1, "begun": 40}))

    def test_a_private_page_is_lost_with_as_many_daemons_as_it_has_copies(self):
        event = {"since": 10, "ended": 20, "single": 0}
        self.model.died("daemon.0", 9, True)
        self.assertFalse(self.model.judge_private(event, 1, 3))
        self.model.died("daemon.1", 15, True)
        self.assertTrue(self.model.judge_private(event, 1, 3))
        self.assertFalse(self.model.judge_private(event, 2, 3))
        self.assertTrue(self.model.judge_private(event, 2, 1))
        self.assertTrue(self.model.judge_private(event | {"single": 1}, 2, 3))


class Counting(unittest.TestCase):
    def test_the_fewest_are_those_in_the_time_and_at_its_begin(self):
        changes = [(1, 1), (2, 1), (5, -1), (6, 1), (9, -1)]
        self.assertEqual(fewest(changes, 3, 4), 2)
        self.assertEqual(fewest(changes, 3, 8), 1)
        self.assertEqual(fewest(changes, 7, 8), 2)


if __name__ == "__main__":
    unittest.main()
