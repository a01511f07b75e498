"""Mixtures of experts that the real DeepSpeed-MoE trained: each expert is read once, with its optimizer's states, or the reason is named."""

import json
import os
import pathlib
import shutil
import sys
import unittest

import torch
from harness import seal, written_for

sys.path[:0] = [str(pathlib.Path(__file__).parents[2] / part) for part in ("python", "tests/cli")]
import cairn  # noqa: E402
from cairn_cli import CliTest  # noqa: E402

COMMON = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True}
BF16 = {"bf16": {"enabled": True}}
CONFIGS = {"fp32": COMMON, "bf16": COMMON | BF16, "zero2": COMMON | BF16 | {"zero_optimization": {"stage": 2}}}


class DeepSpeedMixturesTest(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.trained = written_for(cls, "deepspeed_mixtures.py", json.dumps(CONFIGS))

    def check_values(self, run, known):
        with cairn.open(self.dir / run) as checkpoint:
            for role, tensors in known.items():
                self.assertEqual({one.name for one in checkpoint.values() if one.role == role}, set(tensors))
                for name, tensor in tensors.items():
                    self.assertTrue(torch.equal(torch.from_numpy(checkpoint[name, role].numpy()).to(tensor.dtype), tensor), (name, role))

    def known(self, name):
        return torch.load(self.trained / f"{name}-known.pt")

    def test_trainings_without_zero(self):
        for name, roles in (("fp32", {"weight", "exp_avg", "exp_avg_sq"}), ("bf16", {"weight", "master", "exp_avg", "exp_avg_sq"})):
            with self.subTest(name):
                known = self.known(name)
                self.assertEqual(set(known), roles)
                self.assertIn("layers.0.mlp.deepspeed_moe.experts.deepspeed_experts.3.up.weight", known["exp_avg"])
                self.cairn("convert", self.trained / name, f"{name}-native", "--to", "native", "--dp", 2)
                self.cairn("convert", f"{name}-native", f"{name}-dcp", "--to", "dcp")
                self.cairn("diff", self.trained / name, f"{name}-dcp")
                for run in (f"{name}-native", f"{name}-dcp"):
                    self.check_values(run, known)

    def test_zero_has_only_its_weights(self):
        self.cairn("convert", self.trained / "zero2", "out", "--to", "native", code=2,
                   says=("mixture of experts under ZeRO-1 or 2", "--allow optimizer"))
        self.assertFalse((self.dir / "out").exists())
        self.cairn("convert", self.trained / "zero2", "out", "--to", "native", "--allow", "optimizer")
        self.check_values("out", {"weight": self.known("zero2")["weight"]})

    def copied(self):
        shutil.copytree(self.trained / "fp32", self.dir / "copy")
        return self.dir / "copy" / "global_step3"

    def refused(self, says):
        self.cairn("convert", "copy", "out", "--to", "native", code=2, says=says)
        self.assertFalse((self.dir / "out").exists())
        shutil.rmtree(self.dir / "copy")

    def test_lost_experts_are_named(self):
        def expert(layer, number):
            return tag / f"layer_{layer}_expert_{number}_mp_rank_00_model_states.pt"

        tag = self.copied()
        expert(0, 2).unlink()
        self.cairn("seal", "copy", "--settle", 0, code=1, says="layer_0_expert_2_mp_rank_00_model_states.pt is missing")
        self.refused("this checkpoint holds 3 of 4 experts of mixture 0; layer_0_expert_2_mp_rank_00_model_states.pt is missing")
        tag = self.copied()
        for number in (0, 1):
            expert(1, number).unlink()
        self.refused("holds 0 of 2 experts of mixture 1")
        tag = self.copied()
        shutil.copy(expert(0, 1), expert(0, 3))  # one expert in place of another
        self.refused(("layer_0_expert_3", "is not a tensor of its expert 3"))
        tag = self.copied()
        shutil.copy(expert(0, 1), expert(1, 1))
        self.refused(("layer_1_expert_1", "which is not its mixture"))
        tag = self.copied()
        shutil.copy(expert(0, 1), expert(0, 4))
        self.refused("layer_0_expert_4_mp_rank_00_model_states.pt is left over")
        tag = self.copied()
        states = torch.load(expert(0, 1))
        states.popitem()
        torch.save(states, expert(0, 1))
        self.refused("other tensors than expert 0")
        tag = self.copied()
        os.rename(tag / "expp_rank_1_mp_rank_00_optim_states.pt", tag / "expp_rank_2_mp_rank_00_optim_states.pt")
        self.refused("the optimizer of expert parallel rank 1 is missing")

    def test_ranks_that_differ_are_refused(self):
        """Each expert parallel rank has the optimizer of all that are of no expert."""
        tag = self.copied()
        path = tag / "expp_rank_1_mp_rank_00_optim_states.pt"
        states = torch.load(path)
        states["optimizer"]["state"][0]["exp_avg"][0, 0] += 1
        torch.save(states, path)
        self.refused("embed.weight")

    def test_whole_checkpoints_are_sealed(self):
        self.copied()
        seal(self.dir / "copy")


if __name__ == "__main__":
    unittest.main()
