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
CONFIGS = {"fp32": {"world": 4, "config": COMMON}, "bf16": {"world": 4, "config": COMMON | BF16},
           "bf16-two-sizes": {"world": 4, "ep": [4, 2], "config": COMMON | BF16}}


def zero(stage, ranks, ep, more=BF16, **settings):
    return {"world": ranks, "ep": ep, "config": COMMON | more | {"zero_optimization": {"stage": stage} | settings}}


ZERO = {
    "zero2": zero(2, 4, [2, 2]),
    "zero1": zero(1, 4, [4, 4]),
    "zero2-alone": zero(2, 2, [1, 1], round_robin_gradients=True),
    "zero1-fp32": zero(1, 2, [2, 2], {}),
    "zero1-fp32-gradients": zero(1, 4, [2, 1], BF16 | {"data_types": {"grad_accum_dtype": "fp32"}}),  # BF16_Optimizer
    "zero2-two-sizes": zero(2, 4, [2, 4], round_robin_gradients=True),
    "zero2-blocks": zero(2, 4, [2, 2], BF16 | {"use_data_before_expert_parallelism": True}),
}


class DeepSpeedMixturesTest(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.trained = written_for(cls, "deepspeed_mixtures.py", json.dumps(CONFIGS | ZERO))

    def check_values(self, run, known):
        with cairn.open(self.dir / run) as checkpoint:
            for role, tensors in known.items():
                self.assertEqual({one.name for one in checkpoint.values() if one.role == role}, set(tensors))
                for name, tensor in tensors.items():
                    self.assertTrue(torch.equal(torch.from_numpy(checkpoint[name, role].numpy()).to(tensor.dtype), tensor), (name, role))

    def known(self, name):
        return torch.load(self.trained / f"{name}-known.pt")

    def test_trainings(self):
        for name in CONFIGS | ZERO:
            with self.subTest(name):
                known = self.known(name)
                if "bf16" not in (CONFIGS | ZERO)[name]["config"]:
                    known.pop("master", None)  # the weights again
                self.assertEqual(len(known), 3 + ("bf16" in (CONFIGS | ZERO)[name]["config"]))
                self.assertIn("layers.0.mlp.deepspeed_moe.experts.deepspeed_experts.3.up.weight", known["exp_avg"])
                self.cairn("convert", self.trained / name, f"{name}-native", "--to", "native", "--dp", 2)
                self.cairn("convert", f"{name}-native", f"{name}-dcp", "--to", "dcp")
                self.cairn("diff", self.trained / name, f"{name}-dcp")
                for run in (f"{name}-native", f"{name}-dcp"):
                    self.check_values(run, known)
        for target in ("universal", "megatron-deepspeed"):
            self.cairn("convert", "zero2-native", "out", "--to", target, code=2, says="DeepSpeed-MoE's experts are not written; choose --to dcp")

    def test_groups_of_experts_have_their_names(self):
        for name in ("bf16", "zero2", "zero2-two-sizes"):
            self.cairn("convert", self.trained / name, f"{name}-native", "--to", "native")
            groups = json.loads((self.dir / f"{name}-native/step-00000003/manifest.json").read_text())["state"]["param_groups"]
            for group in groups:
                self.assertEqual({"deepspeed_experts" in parameter for parameter in group["params"]}, {group.get("moe", False)})
            self.assertEqual({parameter for group in groups for parameter in group["params"]}, set(self.known(name)["weight"]))

    def test_shares_that_do_not_fit_are_refused(self):
        def edited(name, files, change):
            tag = self.copied(name)
            for file in files:
                states = torch.load(tag / file, weights_only=False)
                change(states)
                torch.save(states, tag / file)

        shards = [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(4)]
        (self.copied("zero2") / shards[2]).unlink()
        self.refused("the optimizer file of data parallel rank 2 and model parallel rank 0 is missing")
        edited("zero2-blocks", ["mp_rank_00_model_states.pt"], lambda states: states["ds_config"].pop("use_data_before_expert_parallelism"))
        self.refused(("deepspeed_experts", "master"))  # those of other experts
        for count, says in ((3, "4 ranks cannot share a group that is cut in 3"), (1, "group 1 has 424 elements on 1 ranks"),
                            (4, "2 experts on each of 1")):
            edited("zero2", shards, lambda states, count=count: states["optimizer_state_dict"].update(partition_count=[4, count]))
            self.refused(says)

    def copied(self, name="fp32"):
        shutil.copytree(self.trained / name, self.dir / "copy")
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
        for number in range(4):
            expert(1, number).unlink()
        self.refused("holds 0 of 4 experts of mixture 1")
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
