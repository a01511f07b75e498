"""`cairn.hf` in accelerate and the Trainer of transformers: saved, continued bit for bit, loaded by other ranks, sealed, archived and published."""

import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[2] / "python")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cairn  # noqa: E402
import ranks  # noqa: E402


class HfTest(ranks.RanksCase):
    cases = "hf_cases"
    jobs = 0

    def test_1_a_training_resumes_bit_by_bit(self):
        self.run_ranks("whole", 2)
        self.run_ranks("again", 2)
        self.run_ranks("wider", 4)
        model, optimizer = (f"{self.directory}/whole/checkpoint-6/{part}" for part in ("pytorch_model_fsdp_0", "optimizer_0"))
        for run in (model, optimizer):
            cairn.run(["verify", run], capture=True)
            self.assertRegex(cairn.run(["ls", run], capture=True).stdout, r"6 +verified")
        cairn.run(["strip", model, f"{self.directory}/release", "--dtype", "bf16", "--format", "safetensors"], capture=True)

    def test_2_tied_weights_and_the_callback(self):
        self.run_ranks("tied", 2)
        self.assertRegex(cairn.run(["ls", f"{self.directory}/tied"], capture=True).stdout, r"4 +sealed")
        cairn.run(["verify", f"{self.directory}/tied/checkpoint-4"], capture=True)
        cairn.run(["archive", "verify", f"{self.directory}/store"], capture=True)
        with open(f"{self.directory}/tied/checkpoint-4/scheduler.pt", "ab") as file:
            file.write(b"x")
        with self.assertRaises(cairn.CairnError):
            cairn.run(["verify", f"{self.directory}/tied/checkpoint-4"], capture=True)

    def test_2_the_callback_without_fsdp(self):
        for name, world in (("alone", 1), ("ddp", 2), ("zero3", 2)):
            self.run_ranks("without_fsdp", world, arguments=(name,))
            cairn.run(["verify", f"{self.directory}/{name}/checkpoint-4"], capture=True)

    def test_3_accelerate_by_itself(self):
        self.run_ranks("loop", 2)

    def test_3_fsdp1(self):
        self.run_ranks("fsdp1", 2)
        self.run_ranks("fsdp1", 2)
        cairn.run(["verify", f"{self.directory}/fsdp1_3/optimizer_0"], capture=True)

    def test_4_unsupported_options_are_refused(self):
        self.run_ranks("other_format", 2)
        self.run_ranks("refuses", 1)

    def test_5_the_guide(self):
        for steps in (2, 4):
            self.run_ranks("guide", 2, arguments=(steps,))

    def by_accelerate(self, name, how, until, killed=(), **more):
        HfTest.jobs += 1
        names = ("at", "killed_at", "local", "loads")
        given = (more.get(key, key == "local" or None) for key in names)
        self.run_ranks("by_accelerate", 2, killed=killed, arguments=(HfTest.jobs, name, how, until, *given))

    def test_6_accelerate_with_steps_on_the_nodes(self):
        for how in ("fsdp", "zero2", "ddp"):
            os.makedirs(project := f"{self.directory}/{how}/project")
            with self.subTest(how, way="without a break"):
                self.by_accelerate("whole-" + how, how, 8, local=False)
                for rank in (0, 1):
                    shutil.copy(f"{self.directory}/whole-{how}-seen-{rank}.json", f"{self.directory}/{how}-seen-{rank}.json")
                self.by_accelerate(how, how, 8, killed=(0, 1), killed_at=5)
                self.assertEqual(os.listdir(f"{project}/checkpoints"), ["checkpoint_2"])
                self.assertEqual(self.on_node(how, 1), [(3, "whole here"), (4, "whole here")])
            with self.subTest(how, way="a lost node"):
                shutil.rmtree(f"{self.directory}/{how}/node-1")
                self.by_accelerate(how, how, 7, at=5)
                self.assertIn("rebuilding shard-00001.h5", self.logs("by_accelerate", [0]))
                self.assertEqual(sorted(os.listdir(f"{project}/checkpoints")), ["checkpoint_2", "checkpoint_5"])
                self.assertEqual(self.on_node(how, 0)[-1], (6, "whole here"))
        with self.subTest("a checkpoint was removed"):
            shutil.rmtree(f"{project}/checkpoints/checkpoint_5")
            self.by_accelerate(how, how, 5, at=3)
            why = "checkpoint_6 on the nodes follows checkpoint_5, but the newest is checkpoint_2; continuing from checkpoint_2"
            self.assertIn(why, self.logs("by_accelerate", [0]))
            self.assertEqual(self.on_node(how, 0), [(3, "whole here"), (4, "whole here")])
        with self.subTest("a job without local"):
            self.by_accelerate(how, how, 6, at=3, local=False)
            self.by_accelerate(how, how, 8, at=6)
            self.by_accelerate(how, how, 8, at=6, loads="checkpoint_5")
        with self.subTest("files are removed"):
            self.assertEqual(glob.glob(f"{self.directory}/*/node-*/.cairn-files-*"), [])

    def test_6_a_node_without_room(self):
        """accelerate's checkpoint goes to its directory."""
        os.makedirs(node := f"{self.directory}/full/node-1")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", node], capture_output=True).returncode:
            self.skipTest("mounting a small tmpfs needs root")
        self.addCleanup(subprocess.run, ["umount", "-l", node])
        self.by_accelerate("full", "fsdp", 2)
        self.assertRegex(self.logs("by_accelerate", [0]), r"not saved on the nodes, so it goes to the directory: .*rank 1 .* needs about .* are free")
        self.assertEqual(sorted(os.listdir(f"{self.directory}/full/project/checkpoints")), ["checkpoint_0", "checkpoint_1"])

    def by_trainer(self, name, how, killed=(), **more):
        HfTest.jobs += 1
        names = ("at", "killed_at", "local", "resume")
        given = (more.get(key, {"at": 0, "local": True}.get(key)) for key in names)
        self.run_ranks("by_trainer", 2, killed=killed, arguments=(HfTest.jobs, name, how, *given))

    def test_7_the_trainer_with_steps_on_the_nodes(self):
        for how in ("fsdp", "full", "zero3", "ddp"):
            name, whole = "trainer-" + how, "whole-trainer-" + how
            os.makedirs(project := f"{self.directory}/{name}/project")
            with self.subTest(how, way="without a break"):
                self.by_trainer(whole, how, local=False)
                for rank in (0, 1):
                    shutil.copy(f"{self.directory}/{whole}-seen-{rank}.json", f"{self.directory}/{name}-seen-{rank}.json")
                self.by_trainer(name, how, killed=(0, 1), killed_at=5)
                self.assertEqual(sorted(os.listdir(project)), [".cairn-nodes", "checkpoint-3"])
                self.assertEqual(self.on_node(name, 1), [(4, "whole here"), (5, "whole here")])
            with self.subTest(how, way="a lost node"):
                shutil.rmtree(f"{self.directory}/{name}/node-0")
                self.by_trainer(name, how, at=5, resume=True)
                self.assertIn("rebuilding shard-00000.h5", self.logs("by_trainer", [0]))
                self.assertEqual(sorted(os.listdir(project)), [".cairn-nodes", "checkpoint-3", "checkpoint-6"])
                cairn.run(["verify", f"{project}/checkpoint-6"], capture=True)
        with self.subTest("it goes back"):
            self.by_trainer(name, how, at=3, resume=f"{project}/checkpoint-3")

    def on_node(self, name, rank):
        (run,) = json.loads(cairn.run(["ls", f"{self.directory}/{name}/node-{rank}", "--json"], capture=True).stdout)
        self.assertEqual(run["local_steps_of"]["run"], f"{self.directory}/{name}/project/.cairn-nodes")
        return [(step["step"], step["state"]) for step in run["steps"]]


if __name__ == "__main__":
    unittest.main()
