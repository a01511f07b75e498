"""`cairn.bridge`: trainings that Megatron Bridge saves through its manager continue bit by bit, also from Bridge's own checkpoints.

Megatron Bridge with a manager is installed for Python 3.12 alone, with packages for GPUs, so the cases run over a stand-in of the seam,
bridge_stand_in.py. With the real one they run where CAIRN_BRIDGE_SOURCE names the directories that Python imports it from, separated by
colons: Megatron-Bridge (its `src`, or its wheel unpacked), the Megatron-LM that it pins, and whatever else they import. The ranks' whole
training is then Bridge's `pretrain`, on the CPU (bridge_real.py); with BRIDGE_EXPERTS=4 that of a mixture at EP 2. Then Megatron-LM's own
training is run with `cairn.megatron`, too.
"""

import glob
import os
import pathlib
import shutil
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = os.environ.get("CAIRN_BRIDGE_SOURCE", "")
PLACES = [*filter(None, SOURCE.split(os.pathsep)), str(ROOT / "tests/python"), str(ROOT / "python")]
sys.path[:0] = PLACES

if SOURCE and __name__ == "__mp_main__":  # a process that Megatron starts beside a rank
    import bridge_real  # noqa: F401

import cairn  # noqa: E402
import ranks  # noqa: E402

TRACKER = "latest_checkpointed_iteration.txt"


class TrainingCase(ranks.RanksCase):
    """`whole` of the cases is the training that is not interrupted."""

    @classmethod
    def setUpClass(cls):
        os.environ["PYTHONPATH"] = os.pathsep.join(PLACES)
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        super().setUpClass()
        cls.run_ranks(cls(), "whole", 2)


class BridgeTest(TrainingCase):
    cases = "bridge_cases"

    def test_1_a_training_continues_bit_by_bit(self):
        self.run_ranks("first_half", 2)
        self.assertLess({"common.pt", "metadata.json", "step-00000003"}, set(os.listdir(f"{self.directory}/halves/iter_0000003")))
        self.assertRegex(cairn.run(["verify", f"{self.directory}/halves"], capture=True).stdout, "iter_0000003/step-00000003: good")
        for copy in ("back", "torn"):
            shutil.copytree(f"{self.directory}/halves", f"{self.directory}/{copy}")
        self.run_ranks("second_half", 2)
        self.run_ranks("back", 2)

    def test_2_saves_alongside_the_training(self):
        self.run_ranks("first_half_beside", 2)
        self.run_ranks("second_half_beside", 2)

    def test_3_resumes_from_bridges_own_checkpoints(self):
        self.run_ranks("before", 2)
        self.run_ranks("after", 2)

    def test_4_a_dead_rank_leaves_the_previous_iteration(self):
        self.run_ranks("dies", 2, killed=(1,))
        self.run_ranks("after_death", 2)

    def test_5_steps_on_the_nodes(self):
        """The iterations between two saves are only there. Each time, something is lost or changed."""
        node = lambda rank: f"{self.directory}/node-{rank}"  # noqa: E731
        self.run_ranks("on_nodes", 2, killed=(0, 1))
        run = pathlib.Path(self.directory, "nodes")
        self.assertEqual(([path.name for path in run.glob("iter_*")], run.joinpath(TRACKER).read_text()), (["iter_0000003"], "3"))
        with self.subTest("a node"):
            shutil.rmtree(node(1))
            self.run_ranks("from_nodes", 2, arguments=("node", 5))
        with self.subTest("a rank"):
            self.run_ranks("from_nodes", 1, arguments=("rank", 5))
        with self.subTest("the newest step on both nodes"):
            for file in glob.glob(f"{node('*')}/*/step-00000005/shard-0000[01].*"):
                ranks.flip(file, os.path.getsize(file) - 5000)
            self.run_ranks("from_nodes", 2, arguments=("bits", 4))
        with self.subTest("the checkpoint that it follows"):
            self.remove_checkpoints(run)
            self.run_ranks("from_nodes", 2, arguments=("checkpoint", 0))
            self.assert_says_why("continuing from the start")
        with self.subTest("nothing, but another checkpoint is asked for"):
            self.run_ranks("from_nodes", 2, arguments=("asked", 3, 5, False, 3))
        with self.subTest("nothing, but the checkpoint is another one now"):
            self.remove_checkpoints(run)
            self.run_ranks("without_nodes", 2)
            self.run_ranks("from_nodes", 2, arguments=("replaced", 3))
            self.assert_says_why("continuing from iteration 3")
        with self.subTest("all nodes"):
            for rank in range(2):
                shutil.rmtree(node(rank))
            self.run_ranks("from_nodes", 2, arguments=("nodes", 3, 6, True))
        self.assertEqual(sorted(path.name for path in run.glob("iter_*")), ["iter_0000003", "iter_0000006"])

    @unittest.skipIf(SOURCE, "it would wait for its queue")
    def test_5_steps_on_the_nodes_during_a_save_to_the_directory(self):
        run = pathlib.Path(self.directory, "nodes")
        for left in (run, *pathlib.Path(self.directory).glob("node-*")):
            shutil.rmtree(left, ignore_errors=True)
        self.run_ranks("while_saving", 2, killed=(0, 1))
        self.assertEqual([*run.glob("latest_*")], [])
        self.run_ranks("from_nodes", 2, arguments=("saving", 5))

    def remove_checkpoints(self, run):
        shutil.rmtree(run / "iter_0000003")
        for tracker in run.glob("latest_*"):
            tracker.unlink()

    def assert_says_why(self, then):
        if not SOURCE:  # Bridge takes warnings away
            said = pathlib.Path(self.directory, "from_nodes-0.log").read_text()
            self.assertIn(f"does not follow the newest checkpoint; {then}", said)

    def test_6_unsupported_options_are_refused(self):
        self.run_ranks("says", 1)


@unittest.skipUnless(SOURCE, "needs Megatron-LM")
class MegatronLmTest(TrainingCase):
    """Megatron-LM's own pretrain_gpt.py."""

    cases = "megatron_lm_cases"

    def test_steps_on_the_nodes(self):
        """The iterations between two saves are only there. Each time, something is lost or changed."""
        run = pathlib.Path(self.directory, "run")
        for job, flags in (("sync", ""), ("async", "--async-save --async-strategy mcore")):
            with self.subTest(job):
                for left in (run, *pathlib.Path(self.directory).glob("node-*")):
                    shutil.rmtree(left, ignore_errors=True)
                self.run_ranks("on_nodes", 2, killed=(0, 1), arguments=(job, flags))
                self.assertEqual(([path.name for path in run.glob("iter_*")], (run / TRACKER).read_text()), (["iter_0000003"], "3"))
                shutil.rmtree(f"{self.directory}/node-1")
                self.run_ranks("from_nodes", 2, arguments=(f"{job}-again", 5))
                self.assertIn("rebuilding shard-00001.h5", self.logs("from_nodes", [0]))
                self.assertEqual(glob.glob(f"{run}/iter_0000006/step-*"), [f"{run}/iter_0000006/step-00000006"])
                shutil.rmtree(run / "iter_0000006")
                (run / TRACKER).write_text("3")
        with self.subTest("another iteration is asked for"):
            self.run_ranks("from_nodes", 2, arguments=("asked", 3, "--ckpt-step 3"))


@unittest.skipIf(SOURCE, "the real one is its own version")
class OldBridgeTest(BridgeTest):
    """As up to 0.5, whose loads ask Megatron for their strategy."""

    test_5_steps_on_the_nodes = test_5_steps_on_the_nodes_during_a_save_to_the_directory = None

    @classmethod
    def setUpClass(cls):
        os.environ["BRIDGE_STAND_IN"] = "0.5"
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        del os.environ["BRIDGE_STAND_IN"]


if __name__ == "__main__":
    unittest.main()
