"""cairn names the experts that savers and converters lost, and raises no alarm at trainings that lost none.

CAIRN_LONG=1 trains each family with five seeds.
"""

import json
import os
import subprocess
import unittest

import lost_experts
import torch
import torch.distributed.checkpoint as dcp
from lost_experts import EXPERTS, FAMILIES, made, trained, write_release
from test_huggingface import TransformersTest, tensors

LONG = bool(os.environ.get("CAIRN_LONG"))
SEEDS = range(5)


class LostExpertsTest(TransformersTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.set_num_threads(1)
        cls.model, _ = trained("qwen3_moe", seed=0, steps=20)

    def setUp(self):
        super().setUp()
        self.source = self.save("source", self.model)
        self.weights = tensors(self.source)
        self.config = json.loads((self.source / "config.json").read_text())

    def release(self, weights, config=None):
        write_release(self.dir / "broken", weights, config or self.config)
        return self.dir / "broken"

    def named(self, says, source, *more):
        """By verify, and, if `source` cannot be read as it is, by each verb."""
        self.cairn("verify", source, "--json", *more, code=1, says=says)

    def refused(self, says, source, *more):
        self.named(says, source, *more)
        for target in (("native",), ("hf",)):
            done = self.cairn("convert", source, "out", "--to", *target, *more, code=2, says=says)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertFalse((self.dir / "out").exists())
        if not more:
            self.cairn("seal", source, "--settle", 0, code=1, says=says)

    def test_a_whole_model(self):
        says = f"{EXPERTS} experts in each of 3 layers"
        self.cairn("verify", self.source, says=says)
        self.cairn("seal", self.source, "--settle", 0, says=says)
        (report,) = self.json("verify", self.source, "--values")
        self.assertEqual(report["mixtures"], [{"name": f"layers.{layer}.mlp", "experts": EXPERTS} for layer in range(3)])
        self.assertEqual(report["notes"], [])

    def test_experts_of_half_of_the_ranks(self):
        self.refused(f"this file holds {EXPERTS // 2} of {EXPERTS} experts", self.release(lost_experts.verl_2086(self.weights)))

    def test_experts_of_one_rank_in_place_of_the_others(self):
        self.named("experts 0 = 4, 1 = 5, 2 = 6, 3 = 7 are equal bit for bit: one was saved in place of another",
                   self.release(lost_experts.megablocks_160(self.weights)))

    def test_experts_that_a_conversion_left_random(self):
        initial = tensors(self.save("initial", made("qwen3_moe", seed=9)))
        self.named("experts 0 to 7 have the values of an initialization", self.release(lost_experts.bridge_4706(self.weights, initial)))

    def test_predicting_experts_that_a_conversion_left_random(self):
        initial = tensors(self.save("initial", made("qwen3_moe", seed=9)))
        weights, config = lost_experts.bridge_3740(self.weights, self.config, initial)
        self.named("mtp.layers.0.mlp: experts 0 to 7 have the values of an initialization", self.release(weights, config))

    def test_experts_that_all_ranks_save_under_the_same_names(self):
        lost_experts.save_on_ranks(self.dir, self.weights, self.model.state_dict())
        self.refused(f"the files hold {EXPERTS // 2} experts, but the router has a row for each of {EXPERTS}", "kempnerforge")
        self.cairn("verify", "kempnerforge", "--allow", "experts", says="note: layers.0.mlp")
        self.cairn("convert", "kempnerforge", "part", "--to", "safetensors", "--allow", "experts", says=f"hold {EXPERTS // 2} experts")
        self.refused(f"this file holds {EXPERTS // 2} of {EXPERTS} experts", "unirl", "--config", self.source)

    def test_experts_lost_beside_something_that_keeps_the_model_from_being_read(self):
        """A check that cannot be made in one way is made in another: experts are counted by the names in the files, if the family's
        reader refuses the model."""
        lost, one = lost_experts.verl_2086(self.weights), {"weight": torch.ones(1, 32)}
        says = f"the files hold {EXPERTS // 2} of {EXPERTS} experts; besides, "
        cases = {"tower": (lost | {"visual.patch_embed.proj.weight": one["weight"]}, {}),
                 "adapter": (lost | {"model.layers.0.self_attn.q_proj.lora_A.default.weight": one["weight"]}, {}),
                 "rotation": (lost, {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}),
                 "gptq": ({name.replace("_proj.weight", "_proj.qweight") if ".experts." in name else name: tensor
                           for name, tensor in lost.items()}, {"quantization_config": {"quant_method": "gptq", "bits": 4}})}
        for name, (weights, config) in cases.items():
            with self.subTest(name):
                write_release(self.dir / name, weights, self.config | config)
                self.refused(says, name)
        (self.dir / "pickled").mkdir()
        torch.save(lost | {"v_head.summary.weight": one["weight"]}, self.dir / "pickled" / "pytorch_model.bin")
        (self.dir / "pickled" / "config.json").write_text(json.dumps(self.config))
        self.refused(says, "pickled")
        dcp.save({"model": lost_experts.kempnerforge_202(lost_experts.kempnerforge_names(self.weights), 0),
                  "optim": {"state": {"norm.weight": {"preconditioner": torch.ones(4, 4)}}}}, checkpoint_id=self.dir / "state", no_dist=True)
        self.refused(f"the files hold {EXPERTS // 2} experts, but the router has a row for each of {EXPERTS}; besides, ", "state")
        dcp.save({"model": lost | {"value_head.weight": one["weight"]}}, checkpoint_id=self.dir / "head", no_dist=True)
        self.refused(says, "head", "--config", self.source)

    def test_what_could_not_be_checked_is_repeated(self):
        critic = self.release(self.weights | {"value_head.weight": torch.ones(1, 32)})
        self.cairn("seal", critic, "--settle", 0, says=["not checked: ", "value_head.weight", "--allow unchecked accepts that"])
        moved = critic.rename(self.dir / "moved")
        self.cairn("verify", moved, code=2, says=["value_head.weight", f"cairn seal --again --allow unchecked {moved} for good"])
        (report,) = json.loads(self.cairn("verify", moved, "--json", code=2).stdout)
        self.assertEqual((report["ok"], report["problems"], len(report["unchecked"])), (False, [], 1))
        self.cairn("verify", moved, "--allow", "unchecked", says=["note: not checked when it was sealed: ", "good"])
        self.cairn("seal", moved, "--settle", 0, "--again", "--allow", "unchecked")
        self.cairn("verify", moved, says=["note: sealed with --allow unchecked", "note: not checked when it was sealed: ", "good"])
        self.cairn("seal", moved, "--settle", 0, "--again", "--allow", "value_head.*", says=f"{EXPERTS} experts in each of 3 layers")
        done = self.cairn("verify", moved, says=["note: sealed with --allow value_head.*", "good"])
        self.assertNotIn("not checked", done.stderr)

    def test_ranks_that_a_saver_skipped(self):
        lost_experts.megatron_4200(self.dir / "skipped")
        for verb in (("verify", "skipped"), ("convert", "skipped", "out", "--to", "native")):
            done = subprocess.run([self.command, *verb], capture_output=True, text=True, cwd=self.dir)
            self.assertIn(done.returncode, (1, 2) if verb[0] == "verify" else (2,))
            self.assertRegex(done.stdout + done.stderr, "TP rank 1 of pipeline stage 0 is missing|is a mixture of experts")
        self.assertFalse((self.dir / "out").exists())

    def test_layers_of_multi_token_prediction_that_save_pretrained_drops(self):
        says = "multi-token prediction (layers: 1), and no tensor of it is read"
        source = self.save("predicting", made("deepseek_v3", seed=0))
        self.cairn("verify", source, says="note: the configuration has " + says)
        (report,) = self.json("verify", source)
        self.assertIn(says, report["notes"][0])
        self.cairn("seal", source, "--settle", 0, says="note: the configuration has " + says)
        self.cairn("verify", source, says=["note: the configuration has " + says, "good"])
        self.cairn("convert", source, "native", "--to", "native", says=says)

    def test_a_model_that_is_made_of_copies(self):
        """A note before its first update, an alarm after a training."""
        copies = made("qwen3_moe", seed=3)
        state = copies.state_dict()
        for name, tensor in state.items():
            if ".experts." in name:
                tensor[:] = tensor[0]
        source = self.save("copies", copies)
        self.cairn("verify", source, says="the model was made of copies and is not trained yet")
        states = {name: {"step": torch.tensor(3.0), "exp_avg": torch.ones_like(tensor), "exp_avg_sq": torch.ones_like(tensor)}
                  for name, tensor in copies.named_parameters()}
        dcp.save({"model": state, "optim": {"state": states, "param_groups": [{"params": list(states), "lr": 1e-3}]}},
                 checkpoint_id=self.dir / "updated", no_dist=True)
        self.named("one was saved in place of another", "updated", "--config", source)


class TrainingsTest(TransformersTest):
    """Weights without an optimizer, and with AdamW's states."""

    def check(self, family, seed, steps, lr):
        model, optimizer = trained(family, seed, steps, lr)
        name = f"{family}-{seed}-{steps}-{lr}"
        source = self.save(name, model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        states = {names[parameter]: state for parameter, state in optimizer.state.items()}
        dcp.save({"model": model.state_dict(), "optim": {"state": states, "param_groups": [{"params": list(states), "lr": lr}]}},
                 checkpoint_id=self.dir / f"{name}-dcp", no_dist=True)
        self.cairn("verify", source, "--values")
        self.cairn("verify", f"{name}-dcp", "--values", "--config", source)

    def test_trainings_raise_no_alarm(self):
        torch.set_num_threads(1)
        for number, seed in enumerate(SEEDS):
            for family in FAMILIES if LONG else [list(FAMILIES)[number]]:
                for steps, lr in ((1, 1e-3), (8, 1e-2), (40, 1e-2), (40, 1e-3)) if LONG else ((10, 1e-2),):
                    with self.subTest(family=family, seed=seed, steps=steps, lr=lr):
                        self.check(family, seed, steps, lr)


if __name__ == "__main__":
    unittest.main()
