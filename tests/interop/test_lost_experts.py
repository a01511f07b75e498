"""cairn names the experts that savers and converters lost, and raises no alarm at trainings that lost none.

CAIRN_LONG=1 trains each family with five seeds.
"""

import json
import os
import re
import subprocess
import unittest

import lost_experts
import torch
import torch.distributed.checkpoint as dcp
from lost_experts import EXPERTS, FAMILIES, expert_of, made, trained, write_release
from safetensors.torch import save_file
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

    def noted(self, says, source, *more):
        """By one line, or by none; it is good."""
        done = self.cairn("verify", source, *more, says=says or ())
        self.assertEqual(done.stderr.count("note: "), 1 if says else 0, done.stderr)

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
        """Also once it is sealed: then --values reads the values."""
        says = "experts 0 = 4, 1 = 5, 2 = 6, 3 = 7 are equal bit for bit: those of one rank were saved in place of another's"
        source = self.release(lost_experts.megablocks_160(self.weights))
        self.named(says, source)
        self.noted(says, source, "--allow", "experts")
        self.cairn("seal", source, "--settle", 0)
        self.cairn("verify", source, says="--values reads the values, too")
        self.named(says, source, "--values")

    def test_experts_that_a_conversion_left_random(self):
        """Experts that were frozen look the same."""
        initial = tensors(self.save("initial", made("qwen3_moe", seed=9)))
        says = "experts 0 to 7 have the values of an initialization (standard deviation 0.02), while others were trained: frozen, new, "
        self.noted(says, self.release(lost_experts.bridge_4706(self.weights, initial)))
        weights, config = lost_experts.bridge_3740(self.weights, self.config, initial)
        write_release(self.dir / "predicting", weights, config)
        self.noted("mtp.layers.0.mlp: " + says, "predicting")

    def test_the_experts_of_a_rank_that_are_random(self):
        initial = tensors(self.save("initial", made("qwen3_moe", seed=9)))
        half = {name: initial[name] if (expert_of(name) or 0) >= EXPERTS // 2 else tensor for name, tensor in self.weights.items()}
        self.named("experts 4 to 7 have the values of an initialization", self.release(half))

    def test_one_expert_that_is_random_is_seen_in_each_format(self):
        """Without the embedding, whose standard deviation alone shows the training."""
        config = self.config | {"initializer_range": 0.02}
        generator = torch.Generator().manual_seed(4)
        weights = {name: torch.randn(tensor.shape, generator=generator) * (0.02 if expert_of(name) in (None, 5) else 0.034)
                   for name, tensor in self.weights.items()}
        source = self.release(weights, config)
        says = "expert 5 has the values of an initialization"
        self.noted(says, source)
        for target in ("native", "torch-dist", "dcp", "safetensors"):
            with self.subTest(target):
                self.cairn("convert", source, target, "--to", target)
                self.noted(says, target, "--values")
        self.cairn("ls", "native", says="committed")

    def test_models_that_were_meant(self):
        """Equal, initial or missing in part, as somebody meant them: good, with one line that says why they may be."""
        weights, initial = self.weights, tensors(self.save("initial", made("qwen3_moe", seed=9)))
        fused = self.model.state_dict()
        trained = {name: {"step": torch.tensor(9.0), "exp_avg": torch.ones_like(tensor), "exp_avg_sq": torch.ones_like(tensor)}
                   for name, tensor in fused.items()}
        start = made("qwen3_moe", seed=9).state_dict()
        frozen = {name: start[name] if ".experts." in name else tensor for name, tensor in fused.items()}
        masked = {name: state | {key: state[key] * (torch.arange(EXPERTS) == 3).view(-1, 1, 1) for key in ("exp_avg", "exp_avg_sq")}
                  if ".experts." in name else state for name, state in trained.items()}

        def of_expert(number):
            return {name: weights[re.sub(r"(experts)\.\d+", rf"\1.{number(expert_of(name))}", name)] if ".experts." in name else tensor
                    for name, tensor in weights.items()}

        releases = {
            "pairs": (of_expert(lambda expert: expert // 2 * 2), {}, "experts 0 = 1, 2 = 3, 4 = 5, 6 = 7 are equal bit for bit"),
            "upcycled": (of_expert(lambda expert: 0), {}, "experts 0 = 1 = 2 = 3 = 4 = 5 = 6 = 7 are equal"),
            "one_layer_new": ({name: initial[name] if ".layers.1.mlp." in name else tensor for name, tensor in weights.items()}, {},
                              "layers.1.mlp: experts 0 to 7 have the values"),
            "pruned": ({name: tensor[:6] if name.endswith("mlp.gate.weight") else tensor for name, tensor in weights.items()
                        if (expert_of(name) or 0) < 6}, {"model_type": "of_no_table"}, "pruned: files and router have 6 of"),
            "packed": ({name.replace(".weight", ".weight_packed") if expert_of(name) == 2 else name: tensor
                        for name, tensor in weights.items()}, {"model_type": "of_no_table"}, None)}
        for name, (tensors_of, config, says) in releases.items():
            with self.subTest(name):
                write_release(self.dir / name, tensors_of, self.config | config)
                self.noted(says, name)
        for name, (model, states, says) in {
                "frozen": (frozen, {key: state for key, state in trained.items() if ".experts." not in key},
                           "frozen, the optimizer has no state of them"),
                "masked": (fused, masked, "the exp_avg_sq of experts 0 to 2, 4 to 7 is zero")}.items():
            with self.subTest(name):
                dcp.save({"model": model, "optim": {"state": states, "param_groups": [{"params": list(states), "lr": 1e-3}]}},
                         checkpoint_id=self.dir / name, no_dist=True)
                self.noted(says, name, "--config", self.source)

    def test_an_adapter_on_some_experts(self):
        """As peft writes it, without the model."""
        (self.dir / "adapter").mkdir()
        experts = "base_model.model.model.layers.0.mlp.experts"
        save_file({f"{experts}.{expert}.up_proj.lora_{factor}.weight": torch.randn(*shape)
                   for expert in (0, 2, 5) for factor, shape in (("A", (4, 32)), ("B", (48, 4)))},
                  self.dir / "adapter" / "adapter_model.safetensors")
        (self.dir / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        self.noted(None, "adapter")
        self.cairn("convert", "adapter", "adapter-native", "--to", "native")

    def test_experts_that_all_ranks_save_under_the_same_names(self):
        lost_experts.save_on_ranks(self.dir, self.weights, self.model.state_dict())
        self.refused(f"the files hold {EXPERTS // 2} experts, but the router has a row for each of {EXPERTS}", "kempnerforge")
        self.cairn("verify", "kempnerforge", "--allow", "experts", says="note: layers.0.mlp")
        self.cairn("convert", "kempnerforge", "part", "--to", "safetensors", "--allow", "experts", says=f"hold {EXPERTS // 2} experts")
        self.refused(f"this file holds {EXPERTS // 2} of {EXPERTS} experts", "unirl", "--config", self.source)

    def test_lost_experts_are_named_if_the_model_cannot_be_read(self):
        """A check that cannot be made in one way is made in another: experts are counted by the names in the files, if the family's
        reader refuses the model."""
        lost, one = lost_experts.verl_2086(self.weights), {"weight": torch.ones(1, 32)}
        says = f"the files hold {EXPERTS // 2} of {EXPERTS} experts; besides, "
        cases = {"tower": (lost | {"visual.patch_embed.proj.weight": one["weight"]}, {}),
                 "adapter": (lost | {"model.layers.0.self_attn.q_proj.lora_A.default.weight": one["weight"]}, {}),
                 "layers": (lost, {"decoder_sparse_step": 0}),
                 "gptq": ({name.replace("_proj.weight", "_proj.qweight") if ".experts." in name else name: tensor
                           for name, tensor in lost.items()}, {"quantization_config": {"quant_method": "gptq", "bits": 4}})}
        for name, (weights, config) in cases.items():
            with self.subTest(name):
                write_release(self.dir / name, weights, self.config | config)
                if name != "gptq":
                    self.refused(says, name)
                else:  # it is read, under its own names
                    self.named(says.split(";")[0], name)
                    self.cairn("convert", name, "out", "--to", "hf", code=2, says=says.split(";")[0])
        (self.dir / "pickled").mkdir()
        torch.save(lost | {"v_head.summary.weight": one["weight"]}, self.dir / "pickled" / "pytorch_model.bin")
        (self.dir / "pickled" / "config.json").write_text(json.dumps(self.config))
        self.refused(says, "pickled")
        local = lost_experts.kempnerforge_202(lost_experts.kempnerforge_names(self.weights), rank=0)
        dcp.save({"model": local | {"rotations": torch.ones(4, dtype=torch.complex64)}}, checkpoint_id=self.dir / "complex", no_dist=True)
        self.refused(f"the files hold {EXPERTS // 2} experts, but the router has a row for each of {EXPERTS}; besides, ", "complex")
        dcp.save({"model": lost | {"value_head.weight": one["weight"]}}, checkpoint_id=self.dir / "head", no_dist=True)
        self.refused(says, "head", "--config", self.source)

    def test_a_check_that_was_not_possible_is_repeated(self):
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
