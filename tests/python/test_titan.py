"""`cairn.titan` in torchtitan's own Trainer: saved, continued bit for bit, loaded at other meshes, and read by the suite."""

import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("CAIRN_TITAN", f"{os.environ.get('CAIRN_VENV')}/titan")  # scripts/requirements-titan.txt
os.environ.setdefault("OMP_NUM_THREADS", "1")
PLACES = [os.environ["CAIRN_TITAN"], str(ROOT / "tests/python"), str(ROOT / "python")]
sys.path[:0] = PLACES  # torchtitan's torch comes first, in the ranks, too

import cairn  # noqa: E402
import ranks  # noqa: E402


@unittest.skipUnless(os.path.isdir(os.environ["CAIRN_TITAN"]), "torchtitan is not there (scripts/setup --tests)")
class TitanTest(ranks.RanksCase):
    cases = "titan_cases"

    @classmethod
    def setUpClass(cls):
        os.environ["PYTHONPATH"] = os.pathsep.join(PLACES)
        super().setUpClass()

    def steps(self, name):
        return sorted(entry for entry in os.listdir(f"{self.directory}/{name}/checkpoint") if entry.startswith("step-"))

    def test_1_a_training_resumes_bit_by_bit(self):
        self.run_ranks("whole", 2)
        self.assertEqual(self.steps("whole"), ["step-00000002", "step-00000004", "step-00000006"])
        self.run_ranks("again", 2)
        self.run_ranks("alone", 1)
        run = f"{self.directory}/whole/checkpoint"
        cairn.run(["verify", run], capture=True)
        self.assertRegex(cairn.run(["ls", run], capture=True).stdout, r"6 +verified")

    def test_2_a_running_training_changes_one_line(self):
        """From torchtitan's own steps, and then at other meshes."""
        self.run_ranks("dcp_before", 2)
        self.run_ranks("dcp_after", 2)
        self.assertEqual(self.steps("llama"), ["step-00000005", "step-00000006", "step-4"])
        self.run_ranks("tensor_parallel", 2)
        self.run_ranks("pipeline", 2)
        self.run_ranks("after_pipeline", 1)

    def test_3_a_model_without_its_optimizer_is_refused(self):
        self.run_ranks("model_alone", 1)
        run = f"{self.directory}/exported/checkpoint"
        cairn.run(["strip", run, f"{self.directory}/release", "--dtype", "bf16", "--format", "safetensors"], capture=True)
        self.assertIn("model.safetensors", os.listdir(f"{self.directory}/release"))

    def test_4_the_guide(self):
        self.run_ranks("guide", 2)


if __name__ == "__main__":
    unittest.main()
