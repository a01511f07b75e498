"""`cairn.torch`: one flipped bit in one replica of a training is noticed at the next save; healthy trainings raise no alarm."""

import os
import unittest

import ranks

LONG = bool(os.environ.get("CAIRN_LONG"))


class FlipsTest(ranks.RanksCase):
    """What each rank does is in flip_cases.py."""

    cases = "flip_cases"

    def test_each_flipped_bit_is_noticed_at_the_next_save(self):
        for kind, world in (("ddp", 3), ("hsdp", 4), ("tp", 2), ("tp", 4)):
            with self.subTest(kind, world=world):
                self.run_ranks("flips", world, seconds=3600 if LONG else 300, arguments=(kind, 250 if LONG else 8))

    def test_healthy_trainings_raise_no_alarm(self):
        for kind, world in (("ddp", 3), ("hsdp", 4), ("tp", 2)):
            with self.subTest(kind, world=world):
                self.run_ranks("healthy", world, seconds=3600 if LONG else 300, arguments=(kind, 3334 if LONG else 20))

    def test_options_decide_about_copies_that_differ(self):
        self.run_ranks("answers", 2)


if __name__ == "__main__":
    unittest.main()
