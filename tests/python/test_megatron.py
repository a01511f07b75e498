"""`cairn.megatron` with the real Megatron-Core: trainings that resume bit by bit, other topologies, ranks that die, and what is refused."""

import os
import pathlib
import sys
import tarfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[2] / "python")]

import cairn  # noqa: E402
import ranks  # noqa: E402


class MegatronTest(ranks.RanksCase):
    cases = "megatron_cases"

    def test_1_a_training_resumes_bit_by_bit(self):
        self.run_ranks("unbroken", 4)
        for name in ("tp2", "pp2", "fp32"):
            iteration = f"{self.directory}/{name}/iter_0000003"
            self.assertLess({"common.pt", "metadata.json", "step-00000003"}, set(os.listdir(iteration)))
            cairn.run(["verify", f"{iteration}/step-00000003"], capture=True)
            self.read_by_the_suite(iteration, f"{self.directory}/store-{name}")
            self.read_by_the_suite_as_a_run(f"{self.directory}/{name}")
            cairn.run(["seal", f"{self.directory}/{name}-theirs/iter_0000003", "--settle", "0"], capture=True)
        self.run_ranks("resumed", 4)
        self.run_ranks("resharded", 2)
        for again in ("tp2-11", "tp2-12", "pp2-21"):
            steps = [f"{self.directory}/{name}/iter_0000003/step-00000003" for name in (again[:3], again)]
            # The objects differ: random states, and the number of ranks.
            said = cairn.run(["diff", *steps, "--ignore", "state_dict/*"], capture=True).stdout
            self.assertRegex(said, r"(\d+) tensors compared, \1 of them equal")

    def read_by_the_suite(self, iteration, store):
        """The iteration's directory itself: as the step in it, and archived with all that Megatron needs to load it."""
        self.assertRegex(cairn.run(["verify", iteration], capture=True).stdout, "step-00000003: good")
        cairn.run(["archive", "run", iteration, "--store", store], capture=True)
        (member,) = (name for name in os.listdir(store) if name.endswith(".tar"))
        with tarfile.open(f"{store}/{member}") as tar:
            names = {pathlib.Path(name).name for name in tar.getnames()}
        self.assertLess({"common.pt", "metadata.json", "manifest.json"}, names)
        run = pathlib.Path(iteration).parent.name
        cairn.run(["diff", iteration, f"{store}:{run}@3"], capture=True)

    def read_by_the_suite_as_a_run(self, run):
        """Its newest iteration is the one that Megatron's tracker names, whichever system saved it."""
        pathlib.Path(run, "latest_checkpointed_iteration.txt").write_text("3")
        for flags in ([], ["--all"]):
            self.assertRegex(cairn.run(["verify", run, *flags], capture=True).stdout, "iter_0000003/step-00000003: good")
        cairn.run(["diff", run, f"{run}/iter_0000003/step-00000003"], capture=True)

    def test_2_a_dead_rank_leaves_the_previous_iteration(self):
        self.run_ranks("dies", 2, killed=(1,))
        self.run_ranks("after_death", 2)

    def test_3_mismatches_are_named(self):
        self.run_ranks("fits", 2)

    def test_4_mixtures(self):
        self.run_ranks("mixture", 4)
        cairn.run(["verify", f"{self.directory}/mixture"], capture=True)
        self.run_ranks("mixture_again", 4)
        for world, ep, tp in ((2, 2, 1), (8, 4, 1), (4, 2, 2)):
            self.run_ranks("mixture_elsewhere", world, arguments=(ep, tp))

    def test_5_the_guide(self):
        for iterations in (2, 4):
            self.run_ranks("guide", 1, arguments=(iterations,))


if __name__ == "__main__":
    unittest.main()
