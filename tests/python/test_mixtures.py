"""`cairn.torch` with mixtures of experts: each expert is saved once, trainings resume bit for bit, and none is lost without an error."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]

import cairn  # noqa: E402
import ranks  # noqa: E402


class MixturesTest(ranks.RanksCase):
    cases = "mixture_cases"

    def check(self, how):
        self.run_ranks("train", 4, killed=(0, 1, 2, 3), arguments=(how, 2))
        cairn.run(["verify", f"{self.directory}/{how}"], capture=True)
        self.run_ranks("resume", 4, arguments=(how, 2))
        self.run_ranks("alone", 1, arguments=(how,))

    def test_experts_along_a_mesh_of_their_own(self):
        """Two meshes with other dimensions in one state dict, and FSDP's shards of shards."""
        self.check("as_dtensors")
        for how, world, ep in (("as_dtensors", 2, 2), ("as_dtensors", 8, 4), ("as_plain", 2, 2)):
            self.run_ranks("load", world, arguments=(how, ep, "as_dtensors"))

    def test_plain_tensors_of_each_rank(self):
        self.check("as_plain")
        for how, world, ep in (("as_plain", 2, 2), ("as_plain", 8, 4)):
            self.run_ranks("load", world, arguments=(how, ep, "as_plain"))

    def test_lost_experts_are_noticed(self):
        self.run_ranks("lost", 4)


if __name__ == "__main__":
    unittest.main()
