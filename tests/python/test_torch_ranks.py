"""`cairn.torch`: saves and loads of real ranks, and what happens when they die."""

import re
import time
import unittest

import ranks
import torch
from torch_process import ROOT, cairn


class RanksTest(ranks.RanksCase):
    """Jobs of several processes: what each rank does is in torch_cases.py."""

    cases = "torch_cases"

    def test_four_ranks_save_and_other_numbers_of_ranks_load(self):
        self.run_ranks("save_all", 4)
        for world in (3, 2, 1):
            with self.subTest(world=world):
                self.run_ranks("load_all", world)
        for name, mesh in {"fsdp": "4 ranks", "hsdp": "replicate=2 shard=2", "tp_fsdp": "dp=2 tp=2", "whole": "4 ranks"}.items():
            cairn.run(["verify", f"{self.directory}/{name}"], capture=True)
            self.assertEqual([row["mesh"] for row in cairn.ls(f"{self.directory}/{name}")], [mesh])

    def test_fsdp1(self):
        self.run_ranks("fsdp1", 2)
        self.run_ranks("fsdp1", 3)
        cairn.run(["verify", f"{self.directory}/fsdp1"], capture=True)
        self.run_ranks("hybrid_fsdp1", 4)

    def test_jobs_that_check_themselves(self):
        """What each shows, torch_cases.py says."""
        for case, world, *killed in (
            *(("with_dcp", 4), ("resume", 2), ("dtensors", 2), ("hole", 2), ("readme", 2)),
            *(("rank_dies", 4, 2), ("rank_dies_while_it_copies", 4, 2), ("rank_refuses", 3), ("rank_is_late", 3), ("helper_dies", 3)),
        ):
            with self.subTest(case):
                self.run_ranks(case, world, killed=killed)

    def test_helpers_outlive_their_trainers(self):
        self.run_ranks("all_die", 3, killed=(0, 1, 2))
        state = {"model": {f"w{number}": torch.zeros(1000, 1000) for number in range(8)}, "step": 0}
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                self.assertEqual(cairn.torch.load(state, f"{self.directory}/all_die"), 5)
                break
            except FileNotFoundError:
                time.sleep(0.2)
        torch.manual_seed(0)
        for number in range(8):
            self.assertTrue(torch.equal(state["model"][f"w{number}"], torch.randn(1000, 1000)), number)

    def test_the_guide(self):
        """docs/guide/save-from-pytorch.md: its Python in a process, then in a new one, which resumes; then its commands."""
        for step in (2, 4):
            self.run_ranks("guide", 1)
            newest = cairn.torch.read(f"{self.directory}/run")
            self.assertEqual((newest["step"], newest["optim"]["state"][0]["step"]), (step, step))
        self.assertEqual([row["step"] for row in cairn.ls(f"{self.directory}/job")], [3, 4])
        commands = re.findall(r"^\$ cairn (.*)$", (ROOT / "docs/guide/save-from-pytorch.md").read_text(), re.M)
        self.assertGreater(len(commands), 2)
        for command in commands:
            cairn.run(command.replace("/scratch", self.directory).split(), capture=True)


if __name__ == "__main__":
    unittest.main()
