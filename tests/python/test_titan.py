"""`cairn.titan` in torchtitan's own Trainer: saved, continued bit for bit, loaded at other meshes, and read by the suite."""

import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("CAIRN_TITAN", f"{os.environ.get('CAIRN_VENV')}/titan")  # scripts/requirements-titan.txt
os.environ.setdefault("OMP_NUM_THREADS", "1")
PLACES = [os.environ["CAIRN_TITAN"], str(ROOT / "tests/python"), str(ROOT / "python")]
sys.path[:0] = PLACES  # torchtitan's torch comes first, in the ranks, too

import cairn  # noqa: E402
import ranks  # noqa: E402
from cairn import _retention  # noqa: E402


class RetentionTest(unittest.TestCase):
    """What may go, and what stays, over a run of real steps."""

    def test_only_whole_steps_of_the_run_go(self):
        with tempfile.TemporaryDirectory() as directory:
            run = pathlib.Path(directory, "run")
            for step in range(9):
                cairn_torch().save({"w": step}, run, step)
            cairn_torch().save({"w": "again"}, run, 8)  # keeps the first one, as superseded
            (run / "step-00000000" / "notes.txt").write_text("mine")
            (run / "step-00000001").rename(run / "moved")
            (run / "step-00000001").symlink_to(run / "moved")
            (run / "held").mkdir()
            (run / "held" / "step-00000002.00").write_text("/another/step")
            manifest = run / "step-00000003" / "manifest.json"
            manifest.write_text(manifest.read_text().replace('"run": "', '"run": "f'))
            (run / "step-4").mkdir()
            (run / "step-00000009.partial-00").mkdir()
            before = set(os.listdir(run))
            with self.assertLogs("cairn", "WARNING") as said:
                gone = _retention.keep_newest(run, 2)
            self.assertEqual([step.name for step in gone], ["step-00000006", "step-00000005", "step-00000004"])
            self.assertEqual(before - set(os.listdir(run)), {step.name for step in gone})
            for number, reason in enumerate(["notes.txt is not part of it", "a link", "virtual step", "another run's"]):
                self.assertRegex("\n".join(said.output), f"step-0000000{number} stays: .*{reason}")
            cairn.run(["verify", run / "step-00000008"], capture=True)
            self.assertEqual(_retention.keep_newest(run, 100), [])


def cairn_torch():
    import cairn.torch

    return cairn.torch


@unittest.skipUnless(os.path.isdir(os.environ["CAIRN_TITAN"]), "torchtitan is not there (scripts/setup --tests)")
class TitanTest(ranks.RanksCase):
    cases = "titan_cases"

    @classmethod
    def setUpClass(cls):
        os.environ["PYTHONPATH"] = os.pathsep.join(PLACES)
        super().setUpClass()

    def steps(self, name):
        return sorted(entry for entry in os.listdir(f"{self.directory}/{name}/checkpoint") if entry.startswith("step-"))

    def test_1_a_training_goes_on_bit_for_bit(self):
        self.run_ranks("whole", 2)
        self.assertEqual(self.steps("whole"), ["step-00000002", "step-00000004", "step-00000006"])
        self.run_ranks("again", 2)
        self.run_ranks("alone", 1)
        run = f"{self.directory}/whole/checkpoint"
        cairn.run(["verify", run], capture=True)
        self.assertRegex(cairn.run(["ls", run], capture=True).stdout, r"6 +verified")

    def test_2_one_line_of_a_training_that_is_under_way(self):
        """From torchtitan's own steps, and then at other meshes."""
        self.run_ranks("dcp_before", 2)
        self.run_ranks("dcp_after", 2)
        self.assertEqual(self.steps("llama"), ["step-00000005", "step-00000006", "step-4"])
        self.run_ranks("tensor_parallel", 2)
        self.run_ranks("pipeline", 2)
        self.run_ranks("after_pipeline", 1)

    def test_3_a_model_alone_is_no_training(self):
        self.run_ranks("model_alone", 1)
        run = f"{self.directory}/exported/checkpoint"
        cairn.run(["strip", run, f"{self.directory}/release", "--dtype", "bf16", "--format", "safetensors"], capture=True)
        self.assertIn("model.safetensors", os.listdir(f"{self.directory}/release"))

    def test_4_the_guide(self):
        self.run_ranks("guide", 2)


if __name__ == "__main__":
    unittest.main()
